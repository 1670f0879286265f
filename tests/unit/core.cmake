target_sources(scanjit_unit_tests PRIVATE
  core_checked_math_test.cpp
  core_environment_test.cpp
  core_guard_test.cpp
  core_hash_test.cpp
  core_logging_test.cpp
  core_result_test.cpp)
