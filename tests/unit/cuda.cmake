target_sources(scanjit_unit_tests PRIVATE
  ../support/fake_driver.cpp
  cuda_context_test.cpp
  cuda_device_facts_test.cpp
  cuda_driver_test.cpp
  cuda_driver_types_test.cpp
  cuda_memory_module_test.cpp
  cuda_nvrtc_search_test.cpp
  cuda_tensor_map_test.cpp
  cuda_timing_test.cpp)
# The one place that looks at the toolkit's header: our declarations are held against it where it exists.
find_path(SCANJIT_CUDA_H cuda.h PATHS $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include /usr/local/cuda/include NO_DEFAULT_PATH)
if(SCANJIT_CUDA_H)
  set_source_files_properties(cuda_driver_types_test.cpp PROPERTIES COMPILE_OPTIONS "-isystem${SCANJIT_CUDA_H}")
endif()
