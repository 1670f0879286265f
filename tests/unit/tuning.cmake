target_sources(scanjit_unit_tests PRIVATE
  tuning_config_space_test.cpp
  tuning_journal_test.cpp
  tuning_record_test.cpp
  tuning_regret_test.cpp
  tuning_select_test.cpp
  tuning_shape_key_test.cpp
  tuning_shape_map_test.cpp
  tuning_store_admin_test.cpp
  tuning_store_concurrency_test.cpp
  tuning_store_fault_test.cpp
  tuning_store_test.cpp)
set_property(SOURCE tuning_record_test.cpp tuning_shape_map_test.cpp APPEND PROPERTY
  COMPILE_DEFINITIONS SCANJIT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

# The JSON schemas against every file that they are for. Debian's python3-jsonschema belongs to
# /usr/bin/python3, whichever python3 comes first in PATH.
add_test(NAME unit.tuning_schemas
  COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/tuning_schema_check.py ${PROJECT_SOURCE_DIR})
set_tests_properties(unit.tuning_schemas PROPERTIES LABELS unit SKIP_REGULAR_EXPRESSION "skipped: ")
