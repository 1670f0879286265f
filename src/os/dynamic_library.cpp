#include "os/dynamic_library.hpp"

#include <dlfcn.h>
#include <link.h>

#include <utility>

namespace scanjit::os {
namespace {

/// Why the last dlopen of this thread failed; the loader begins with the name, which we say
/// ourselves.
std::string last_error(const std::string& name) {
  const char* text = ::dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc and musl
  if (text == nullptr) return "the loader gives no reason";
  const std::string reason = text;
  return reason.starts_with(name + ": ") ? reason.substr(name.size() + 2) : reason;
}

class SystemLibrary final : public DynamicLibrary {
 public:
  SystemLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  [[nodiscard]] Result<void*> symbol(const std::string& name) const override {
    void* address = ::dlsym(handle_, name.c_str());
    if (address == nullptr) return not_found(path_ + " has no symbol " + name, path_);
    return address;
  }
  [[nodiscard]] const std::string& path() const noexcept override { return path_; }

 private:
  void* handle_;  // never closed, see the header
  std::string path_;
};

class SystemLoader final : public LibraryLoader {
 public:
  [[nodiscard]] Result<std::shared_ptr<DynamicLibrary>> open(const std::string& name) override {
    if (name.empty()) return invalid_argument("the name of a library is empty");
    void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return not_found("cannot open " + name + ": " + last_error(name), name);
    const link_map* map = nullptr;
    std::string path = name;
    if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr && map->l_name != nullptr &&
        *map->l_name != '\0') {
      path = map->l_name;
    }
    return std::shared_ptr<DynamicLibrary>(
        std::make_shared<SystemLibrary>(handle, std::move(path)));
  }
};

}  // namespace

void FailedLibraries::add(const std::string& name, const Status& status) {
  std::string reason = status.message();
  for (const std::string& prefix : {"cannot open " + name + ": ", name + ": ", name + " "}) {
    if (reason.starts_with(prefix)) reason.erase(0, prefix.size());
  }
  if (!groups_.empty() && groups_.back().reason == reason) {
    groups_.back().names += ", " + name;
  } else {
    groups_.push_back({name, std::move(reason)});
  }
}

std::string FailedLibraries::text() const {
  std::string text;
  for (const Group& group : groups_)
    text += (text.empty() ? "" : "; ") + group.names + " (" + group.reason + ")";
  return text;
}

LibraryLoader& system_loader() noexcept {
  static SystemLoader loader;
  return loader;
}

}  // namespace scanjit::os
