# The server of tests/consumer/server against the fake driver.
if(TARGET scanjit_commands)
  target_sources(scanjit_unit_tests PRIVATE server_test.cpp)
  set_property(SOURCE server_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS SCANJIT_SERVER="$<TARGET_FILE:scanjit_server>")
  add_dependencies(scanjit_unit_tests scanjit_server)
endif()
