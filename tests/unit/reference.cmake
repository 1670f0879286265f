target_sources(scanjit_unit_tests PRIVATE
  reference_abc_cases_test.cpp
  reference_abc_test.cpp
  reference_cases_test.cpp
  reference_compare_test.cpp
  reference_gated_delta_h_test.cpp
  reference_generators_test.cpp
  reference_gpu_oracle_test.cpp
  reference_half_test.cpp
  reference_kda_test.cpp)
# As src/reference: a*b+c is two roundings, so that plain loops here and there can agree bit for bit.
set_source_files_properties(reference_gated_delta_h_test.cpp reference_gpu_oracle_test.cpp
  PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
