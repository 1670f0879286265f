target_sources(scanjit_unit_tests PRIVATE
  jit_binary_cache_test.cpp
  jit_binary_format_test.cpp
  jit_cache_kill_test.cpp
  jit_cubin_test.cpp
  jit_specialiser_test.cpp
  jit_template_store_test.cpp)
