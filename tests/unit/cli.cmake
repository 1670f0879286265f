# The command line: in this process where no GPU is looked for, else the program itself against a
# driver library without a GPU.
if(TARGET scanjit_commands)
  target_sources(scanjit_unit_tests PRIVATE
    cli_abc_test.cpp
  cli_argv_test.cpp
    cli_files_test.cpp
    cli_gpu_commands_test.cpp
    cli_help_test.cpp
    cli_hostile_store_test.cpp
    cli_parts_test.cpp
    cli_picture_test.cpp
    cli_tensor_problem_test.cpp
    cli_tune_test.cpp)
  target_link_libraries(scanjit_unit_tests PRIVATE scanjit_commands CLI11::CLI11)
  target_compile_definitions(scanjit_unit_tests PRIVATE
    SCANJIT_PROGRAM="$<TARGET_FILE:scanjit_cli>"
    SCANJIT_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    SCANJIT_FAKE_CUDA="$<TARGET_FILE:scanjit_fake_cuda>")
  add_dependencies(scanjit_unit_tests scanjit_cli scanjit_fake_cuda)

  add_library(scanjit_fake_cuda MODULE ../support/fake_cuda_library.cpp ../support/fake_driver.cpp)
  target_include_directories(scanjit_fake_cuda PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(scanjit_fake_cuda PRIVATE scanjit_internal scanjit_warnings)
endif()
