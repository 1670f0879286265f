// Version 3 brings its own main function; version 2 wants it compiled here, once for all test
// programs.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
