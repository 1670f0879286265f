target_sources(scanjit_unit_tests PRIVATE
  engine_abc_test.cpp
  engine_capture_test.cpp
  engine_context_test.cpp
  engine_first_use_test.cpp
  engine_kda_test.cpp
  engine_legality_test.cpp
  engine_lookup_test.cpp
  engine_plan_test.cpp
  engine_seal_test.cpp
  engine_shortlists_test.cpp
  engine_threads_test.cpp)
