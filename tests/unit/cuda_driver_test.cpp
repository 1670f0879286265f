// Finding and filling the driver's table, and the sentences of its errors.

#include "cuda/driver.hpp"

#include <map>
#include <string>

#include "support/catch.hpp"
#include "support/fake_driver.hpp"

using namespace scanjit;
using namespace scanjit::cuda;

namespace {

CUresult answer = CUDA_SUCCESS;
CUresult init(unsigned) { return answer; }
CUresult text(CUresult, const char** out) {
  *out = "words";
  return CUDA_SUCCESS;
}
CUresult nothing() { return CUDA_SUCCESS; }

// Every function but the one named `missing`.
class TableLibrary final : public os::DynamicLibrary {
 public:
  TableLibrary(std::string path, std::string missing)
      : path_(std::move(path)), missing_(std::move(missing)) {}
  Result<void*> symbol(const std::string& name) const override {
    if (name == missing_) return not_found(path_ + " has no symbol " + name);
    if (name == "cuInit") return reinterpret_cast<void*>(&init);
    if (name == "cuGetErrorName" || name == "cuGetErrorString")
      return reinterpret_cast<void*>(&text);
    return reinterpret_cast<void*>(&nothing);
  }
  const std::string& path() const noexcept override { return path_; }

 private:
  std::string path_, missing_;
};

class TableLoader final : public os::LibraryLoader {
 public:
  Result<std::shared_ptr<os::DynamicLibrary>> open(const std::string& name) override {
    ++opened[name];
    const auto found = libraries.find(name);
    if (found == libraries.end()) return not_found("no such file: " + name, name);
    return std::shared_ptr<os::DynamicLibrary>(std::make_shared<TableLibrary>(name, found->second));
  }
  std::map<std::string, std::string> libraries;  // name -> symbol that it lacks
  std::map<std::string, int> opened;
};

}  // namespace

TEST_CASE("a missing driver is unsupported and the sentence lists every place", "[cuda]") {
  TableLoader loader;
  const auto api = open_driver({}, loader);
  REQUIRE_FALSE(api.ok());
  CHECK(api.status().code() == ErrorCode::kUnsupported);
  for (const char* place : {"libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                            "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1",
                            "SCANJIT_CUDA_LIBRARY"}) {
    CHECK(api.status().message().find(place) != std::string::npos);
  }
}

TEST_CASE("SCANJIT_CUDA_LIBRARY is the only place looked at when set", "[cuda]") {
  TableLoader loader;
  loader.libraries["libcuda.so.1"] = "";
  Environment environment;
  environment.scanjit_cuda_library = "/opt/mine.so";
  CHECK_FALSE(open_driver(environment, loader).ok());
  CHECK(loader.opened.count("libcuda.so.1") == 0);
  loader.libraries["/opt/mine.so"] = "";
  answer = CUDA_SUCCESS;
  CHECK(open_driver(environment, loader).ok());
}

TEST_CASE("a driver without a required function is named with it; an optional one may be missing",
          "[cuda]") {
  TableLoader loader;
  answer = CUDA_SUCCESS;
  loader.libraries["libcuda.so.1"] = "cuLaunchKernelEx";
  const auto old = open_driver({}, loader);
  REQUIRE_FALSE(old.ok());
  CHECK(old.status().message().find("cuLaunchKernelEx") != std::string::npos);
  loader.libraries["libcuda.so.1"] = "cuFuncLoad";
  const auto usable = open_driver({}, loader);
  REQUIRE(usable.ok());
  CHECK(usable->cuFuncLoad == nullptr);
  CHECK(usable->cuMemAlloc != nullptr);
}

TEST_CASE("a stub library is passed over for the next place", "[cuda]") {
  TableLoader loader;
  loader.libraries["libcuda.so.1"] = "";
  answer = CUDA_ERROR_STUB_LIBRARY;
  const auto api = open_driver({}, loader);
  REQUIRE_FALSE(api.ok());
  CHECK(api.status().message().find("cuInit failed") != std::string::npos);
  CHECK(loader.opened.count("/usr/lib64/libcuda.so.1") == 1);
  answer = CUDA_SUCCESS;
}

TEST_CASE("driver errors become codes with the call, the number and the driver's words", "[cuda]") {
  test::FakeDriver driver;
  CHECK(check(driver.api(), CUDA_SUCCESS, "cuX").ok());
  const Status status = check(driver.api(), CUDA_ERROR_INVALID_VALUE, "cuMemAlloc");
  CHECK(status.code() == ErrorCode::kCudaError);
  CHECK(status.details().cuda_result == 1);
  CHECK(status.message().find("cuMemAlloc failed") == 0);
  CHECK(status.message().find("(1)") != std::string::npos);
  CHECK(check(driver.api(), CUDA_ERROR_OUT_OF_MEMORY, "cuX").code() == ErrorCode::kOutOfMemory);
  for (const CUresult sticky : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED,
                                CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_ECC_UNCORRECTABLE,
                                CUDA_ERROR_CONTEXT_IS_DESTROYED, CUDA_ERROR_ILLEGAL_INSTRUCTION}) {
    CHECK(check(driver.api(), sticky, "cuX").code() == ErrorCode::kDeviceLost);
  }
}

TEST_CASE("versions are written as CUDA writes them", "[cuda]") {
  CHECK(version_text(12040) == "12.4");
  CHECK(version_text(13000) == "13.0");
}
