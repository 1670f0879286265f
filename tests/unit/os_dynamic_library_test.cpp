#include <cmath>
#include <string>

#include "os/dynamic_library.hpp"
#include "support/catch.hpp"

using scanjit::ErrorCode;
using scanjit::os::system_loader;

TEST_CASE("A library of the system opens, says which file it is and gives its symbols", "[os]") {
  const auto library = system_loader().open("libm.so.6");
  REQUIRE(library.ok());
  CHECK((*library)->path().find("/libm.so.6") != std::string::npos);
  const auto symbol = (*library)->symbol("cbrt");
  REQUIRE(symbol.ok());
  const auto cube_root = reinterpret_cast<double (*)(double)>(*symbol);
  CHECK(cube_root(27.0) == Approx(3.0));
  const auto missing = (*library)->symbol("no_such_function");
  CHECK(missing.status().code() == ErrorCode::kNotFound);
  CHECK(missing.status().message().find("no_such_function") != std::string::npos);
  CHECK(missing.status().message().find("libm") != std::string::npos);
  // The same file by its path.
  CHECK(system_loader().open((*library)->path()).ok());
}

TEST_CASE("What cannot be opened is named, with the loader's reason", "[os]") {
  const auto library = system_loader().open("libno-such-library.so.9");
  CHECK(library.status().code() == ErrorCode::kNotFound);
  CHECK(library.status().message().find("libno-such-library.so.9") != std::string::npos);
  CHECK(library.status().message().find("No such file") != std::string::npos);
  CHECK(system_loader().open("").status().code() == ErrorCode::kInvalidArgument);
  CHECK(system_loader().open("/etc/passwd").status().code() == ErrorCode::kNotFound);
}
