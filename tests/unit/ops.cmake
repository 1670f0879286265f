target_sources(scanjit_unit_tests PRIVATE
  ops_abc_stages_test.cpp
  ops_abc_test.cpp
  ops_bad_input_test.cpp
  ops_config_test.cpp
  ops_kda_bad_input_test.cpp
  ops_kda_test.cpp
  ops_key_test.cpp
  ops_regions_test.cpp
  ops_timing_test.cpp)
