target_sources(scanjit_unit_tests PRIVATE
  os_cache_directory_test.cpp
  os_dynamic_library_test.cpp
  os_file_lock_test.cpp
  os_file_system_test.cpp
  os_process_test.cpp
  os_publish_test.cpp
  os_trust_test.cpp)
