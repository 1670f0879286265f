# The C interface: a program compiled as C, with the shared library, against the fake driver.
if(TARGET scanjit_commands)
  add_executable(scanjit_c_interface ../consumer/c/c_interface.c)
  target_link_libraries(scanjit_c_interface PRIVATE scanjit_c scanjit_warnings ${CMAKE_DL_LIBS})
  set_target_properties(scanjit_c_interface PROPERTIES C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF)
  target_sources(scanjit_unit_tests PRIVATE capi_test.cpp)
  set_property(SOURCE capi_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    SCANJIT_C_PROGRAM="$<TARGET_FILE:scanjit_c_interface>" SCANJIT_C_LIBRARY="$<TARGET_FILE:scanjit_c>")
  add_dependencies(scanjit_unit_tests scanjit_c_interface)
endif()
