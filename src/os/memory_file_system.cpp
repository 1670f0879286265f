#include "os/memory_file_system.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

namespace scanjit::os {
namespace {

constexpr std::uint32_t kUser = 1000;

struct Node {
  FileType type = FileType::kRegular;
  std::string bytes;         // or the target of a link
  std::string synced_bytes;  // what a crash leaves
  std::int64_t modified_ns = 0;
  std::uint32_t owner = kUser;
  std::uint32_t mode = 0600;
};

using Tree = std::map<std::string, std::shared_ptr<Node>>;  // by absolute path without "." or ".."

/// The same path, absolute and without empty, "." and ".." parts.
std::string normal_path(const std::string& path) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.push_back(part);
    }
    begin = end + 1;
  }
  std::string normal;
  for (const std::string& part : parts) normal += "/" + part;
  return normal.empty() ? "/" : normal;
}

}  // namespace

struct MemoryFileSystem::State {
  mutable std::mutex mutex;
  Tree now;
  Tree synced;  // the names that a crash leaves
  std::set<std::string> locks;
  std::int64_t calls = 0;
  std::int64_t fail_at = 0;  // the call of this number fails; 0: none
  bool fail_after = false;   // and all later ones
  int fail_errno = 0;
  std::int64_t clock_ns = 1'000'000'000;
  std::int64_t free_bytes = std::int64_t{1} << 40;

  /// Counts a call; the errno it must fail with, or 0. The lock is held.
  int next_call() {
    ++calls;
    if (fail_at == 0) return 0;
    return calls == fail_at || (fail_after && calls > fail_at) ? fail_errno : 0;
  }

  std::int64_t tick() { return clock_ns += 1'000'000; }

  /// The path with links followed in every part, and in the last one if `follow_last`.
  std::string real_path(const std::string& path, bool follow_last, int depth = 0) const {
    constexpr int kMaxLinks = 16;
    std::string normal = normal_path(path);
    if (normal == "/" || depth > kMaxLinks) return normal;
    const std::string parent = real_path(parent_path(normal), true, depth + 1);
    std::string here = join_path(parent, base_name(normal));
    const auto found = now.find(here);
    if (follow_last && found != now.end() && found->second->type == FileType::kSymlink) {
      return real_path(found->second->bytes, true, depth + 1);
    }
    return here;
  }

  std::shared_ptr<Node> find(const std::string& path, bool follow_last) const {
    const auto found = now.find(real_path(path, follow_last));
    return found == now.end() ? nullptr : found->second;
  }

  bool has_children(const std::string& folder) const {
    for (const auto& [path, node] : now) {
      if (path != "/" && parent_path(path) == folder) return true;
    }
    return false;
  }

  Result<FileInfo> info_of(const std::string& path, bool follow_last) {
    const std::lock_guard lock(mutex);
    if (const int error = next_call(); error != 0) return system_error(error, "stat", path);
    const std::shared_ptr<Node> node = find(path, follow_last);
    if (!node) return system_error(ENOENT, "stat", path);
    FileInfo info;
    info.type = node->type;
    info.size = static_cast<std::int64_t>(node->bytes.size());
    info.modified_ns = node->modified_ns;
    info.owner = node->owner;
    info.mode = node->mode;
    return info;
  }

  std::shared_ptr<Node> make_node(FileType type, std::uint32_t mode) {
    auto node = std::make_shared<Node>();
    node->type = type;
    node->mode = mode;
    node->modified_ns = tick();
    return node;
  }

  void put_synced(const std::string& path, const std::shared_ptr<Node>& node) {
    for (std::string folder = parent_path(path);; folder = parent_path(folder)) {
      if (!now.contains(folder)) now[folder] = make_node(FileType::kDirectory, 0700);
      synced[folder] = now[folder];
      if (folder == "/") break;
    }
    node->synced_bytes = node->bytes;
    now[path] = node;
    synced[path] = node;
  }
};

namespace {

class MemoryWriter final : public FileWriter {
 public:
  MemoryWriter(std::shared_ptr<MemoryFileSystem::State> state, std::shared_ptr<Node> node,
               std::string path)
      : state_(std::move(state)), node_(std::move(node)), path_(std::move(path)) {}

  [[nodiscard]] Status write(std::string_view bytes) override {
    const std::lock_guard lock(state_->mutex);
    const int error = state_->next_call();
    node_->bytes.append(error == 0 ? bytes : bytes.substr(0, bytes.size() / 2));
    node_->modified_ns = state_->tick();
    return error == 0 ? Status() : system_error(error, "write", path_);
  }
  [[nodiscard]] Status sync() override {
    const std::lock_guard lock(state_->mutex);
    if (const int error = state_->next_call(); error != 0)
      return system_error(error, "sync", path_);
    node_->synced_bytes = node_->bytes;
    return {};
  }
  [[nodiscard]] Status close() override {
    const std::lock_guard lock(state_->mutex);
    if (const int error = state_->next_call(); error != 0)
      return system_error(error, "close", path_);
    return {};
  }

 private:
  std::shared_ptr<MemoryFileSystem::State> state_;
  std::shared_ptr<Node> node_;
  std::string path_;
};

class MemoryLock final : public FileLock::Hold {
 public:
  MemoryLock(std::shared_ptr<MemoryFileSystem::State> state, std::string path)
      : state_(std::move(state)), path_(std::move(path)) {}
  MemoryLock(const MemoryLock&) = delete;
  MemoryLock& operator=(const MemoryLock&) = delete;
  ~MemoryLock() override {
    const std::lock_guard lock(state_->mutex);
    state_->locks.erase(path_);
  }

 private:
  std::shared_ptr<MemoryFileSystem::State> state_;
  std::string path_;
};

}  // namespace

MemoryFileSystem::MemoryFileSystem() : state_(std::make_shared<State>()) {
  constexpr std::uint32_t kRootMode = 0755;
  const std::shared_ptr<Node> root = state_->make_node(FileType::kDirectory, kRootMode);
  root->owner = 0;
  state_->now["/"] = root;
  state_->synced["/"] = root;
}
MemoryFileSystem::~MemoryFileSystem() = default;

void MemoryFileSystem::fail_call(std::int64_t nth, int error_number, bool persist) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_at = state_->calls + nth;
  state_->fail_after = persist;
  state_->fail_errno = error_number;
}

void MemoryFileSystem::clear_fault() {
  const std::lock_guard lock(state_->mutex);
  state_->fail_at = 0;
}

std::int64_t MemoryFileSystem::calls() const {
  const std::lock_guard lock(state_->mutex);
  return state_->calls;
}

void MemoryFileSystem::crash(CrashKeeps keeps) {
  const std::lock_guard lock(state_->mutex);
  if (keeps == CrashKeeps::kSyncedOnly) state_->now = state_->synced;
  // In order of their paths: folders come before what is in them.
  for (auto entry = state_->now.begin(); entry != state_->now.end();) {
    entry = state_->now.contains(parent_path(entry->first)) ? std::next(entry)
                                                            : state_->now.erase(entry);
  }
  for (auto& [path, node] : state_->now) {
    if (node->type == FileType::kRegular) node->bytes = node->synced_bytes;
  }
  state_->synced = state_->now;
  state_->locks.clear();
}

void MemoryFileSystem::put(const std::string& path, const std::string& bytes) {
  const std::lock_guard lock(state_->mutex);
  const std::string real = state_->real_path(path, true);
  const std::shared_ptr<Node> node = state_->make_node(FileType::kRegular, 0600);
  node->bytes = bytes;
  state_->put_synced(real, node);
}

void MemoryFileSystem::put_symlink(const std::string& path, const std::string& target) {
  const std::lock_guard lock(state_->mutex);
  const std::shared_ptr<Node> node = state_->make_node(FileType::kSymlink, 0777);
  node->bytes = target;
  state_->put_synced(state_->real_path(path, false), node);
}

void MemoryFileSystem::set_owner(const std::string& path, std::uint32_t owner) {
  const std::lock_guard lock(state_->mutex);
  if (const std::shared_ptr<Node> node = state_->find(path, true)) node->owner = owner;
}

void MemoryFileSystem::set_mode(const std::string& path, std::uint32_t mode) {
  const std::lock_guard lock(state_->mutex);
  if (const std::shared_ptr<Node> node = state_->find(path, true)) node->mode = mode;
}

void MemoryFileSystem::set_modified_ns(const std::string& path, std::int64_t modified_ns) {
  const std::lock_guard lock(state_->mutex);
  if (const std::shared_ptr<Node> node = state_->find(path, true)) node->modified_ns = modified_ns;
}

void MemoryFileSystem::set_free_bytes(std::int64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->free_bytes = bytes;
}

Result<std::string> MemoryFileSystem::read_file(const std::string& path, std::int64_t max_bytes) {
  const std::lock_guard lock(state_->mutex);
  if (const int error = state_->next_call(); error != 0) return system_error(error, "read", path);
  const std::shared_ptr<Node> node = state_->find(path, true);
  if (!node) return system_error(ENOENT, "open", path);
  if (node->type != FileType::kRegular) return corrupt(path + " is not a regular file", path);
  if (static_cast<std::int64_t>(node->bytes.size()) > max_bytes) {
    return corrupt(path + " has " + std::to_string(node->bytes.size()) + " bytes, more than the " +
                       std::to_string(max_bytes) + " allowed",
                   path);
  }
  return node->bytes;
}

Result<std::vector<std::string>> MemoryFileSystem::list_directory(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  if (const int error = state_->next_call(); error != 0) return system_error(error, "list", path);
  const std::string folder = state_->real_path(path, true);
  const auto found = state_->now.find(folder);
  if (found == state_->now.end()) return system_error(ENOENT, "list", path);
  if (found->second->type != FileType::kDirectory) return system_error(ENOTDIR, "list", path);
  std::vector<std::string> names;
  for (const auto& [child, node] : state_->now) {
    if (child != "/" && parent_path(child) == folder) names.push_back(base_name(child));
  }
  return names;
}

Result<FileInfo> MemoryFileSystem::info(const std::string& path) {
  return state_->info_of(path, true);
}
Result<FileInfo> MemoryFileSystem::link_info(const std::string& path) {
  return state_->info_of(path, false);
}

Result<std::string> MemoryFileSystem::resolve(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  if (const int error = state_->next_call(); error != 0)
    return system_error(error, "resolve", path);
  std::string real = state_->real_path(path, true);
  if (!state_->now.contains(real)) return system_error(ENOENT, "resolve", path);
  return real;
}

Result<std::unique_ptr<FileWriter>> MemoryFileSystem::create(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  if (const int error = state_->next_call(); error != 0) return system_error(error, "create", path);
  const std::string real = state_->real_path(path, false);
  const auto parent = state_->now.find(parent_path(real));
  if (parent == state_->now.end()) return system_error(ENOENT, "create", path);
  if (parent->second->type != FileType::kDirectory) return system_error(ENOTDIR, "create", path);
  if (state_->now.contains(real)) return system_error(EEXIST, "create", path);
  const std::shared_ptr<Node> node = state_->make_node(FileType::kRegular, 0600);
  state_->now[real] = node;
  return std::unique_ptr<FileWriter>(std::make_unique<MemoryWriter>(state_, node, path));
}

Status MemoryFileSystem::rename(const std::string& from, const std::string& to) {
  const std::lock_guard lock(state_->mutex);
  const std::string action = "rename " + from + " to";
  if (const int error = state_->next_call(); error != 0) return system_error(error, action, to);
  const std::string real_from = state_->real_path(from, false);
  const std::string real_to = state_->real_path(to, false);
  const auto source = state_->now.find(real_from);
  if (source == state_->now.end()) return system_error(ENOENT, action, to);
  if (!state_->now.contains(parent_path(real_to))) return system_error(ENOENT, action, to);
  if (real_from == real_to) return {};
  if (real_to.starts_with(real_from + "/")) return system_error(EINVAL, action, to);
  if (const auto target = state_->now.find(real_to); target != state_->now.end()) {
    const bool to_directory = target->second->type == FileType::kDirectory;
    const bool from_directory = source->second->type == FileType::kDirectory;
    if (to_directory && !from_directory) return system_error(EISDIR, action, to);
    if (!to_directory && from_directory) return system_error(ENOTDIR, action, to);
    if (to_directory && state_->has_children(real_to)) return system_error(ENOTEMPTY, action, to);
  }
  Tree moved;
  for (auto entry = state_->now.begin(); entry != state_->now.end();) {
    if (entry->first == real_from || entry->first.starts_with(real_from + "/")) {
      moved[real_to + entry->first.substr(real_from.size())] = entry->second;
      entry = state_->now.erase(entry);
    } else {
      ++entry;
    }
  }
  for (auto& [path, node] : moved) state_->now[path] = node;
  return {};
}

Status MemoryFileSystem::remove_file(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  if (const int error = state_->next_call(); error != 0) return system_error(error, "remove", path);
  const auto found = state_->now.find(state_->real_path(path, false));
  if (found == state_->now.end()) return system_error(ENOENT, "remove", path);
  if (found->second->type == FileType::kDirectory) return system_error(EISDIR, "remove", path);
  state_->now.erase(found);
  return {};
}

Status MemoryFileSystem::remove_directory(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  const std::string action = "remove the directory";
  if (const int error = state_->next_call(); error != 0) return system_error(error, action, path);
  const auto found = state_->now.find(state_->real_path(path, false));
  if (found == state_->now.end()) return system_error(ENOENT, action, path);
  if (found->second->type != FileType::kDirectory) return system_error(ENOTDIR, action, path);
  if (state_->has_children(found->first)) return system_error(ENOTEMPTY, action, path);
  state_->now.erase(found);
  return {};
}

Status MemoryFileSystem::make_directory(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  const std::string action = "make the directory";
  if (const int error = state_->next_call(); error != 0) return system_error(error, action, path);
  const std::string real = state_->real_path(path, true);
  if (const auto found = state_->now.find(real); found != state_->now.end()) {
    return found->second->type == FileType::kDirectory ? Status()
                                                       : system_error(EEXIST, action, path);
  }
  const auto parent = state_->now.find(parent_path(real));
  if (parent == state_->now.end()) return system_error(ENOENT, action, path);
  if (parent->second->type != FileType::kDirectory) return system_error(ENOTDIR, action, path);
  state_->now[real] = state_->make_node(FileType::kDirectory, 0700);
  return {};
}

Status MemoryFileSystem::sync_directory(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  const std::string action = "sync the directory";
  if (const int error = state_->next_call(); error != 0) return system_error(error, action, path);
  const std::string folder = state_->real_path(path, true);
  if (!state_->now.contains(folder)) return system_error(ENOENT, action, path);
  const auto inside = [&](const std::string& child) {
    return child != "/" && parent_path(child) == folder;
  };
  std::erase_if(state_->synced, [&](const auto& entry) { return inside(entry.first); });
  for (const auto& [child, node] : state_->now) {
    if (inside(child)) state_->synced[child] = node;
  }
  // The fake is kind here: making a directory durable makes those above it durable too.
  for (std::string above = folder; above != "/"; above = parent_path(above)) {
    state_->synced[above] = state_->now[above];
  }
  return {};
}

Status MemoryFileSystem::touch(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  if (const int error = state_->next_call(); error != 0) return system_error(error, "touch", path);
  const std::shared_ptr<Node> node = state_->find(path, true);
  if (!node) return system_error(ENOENT, "touch", path);
  node->modified_ns = state_->tick();
  return {};
}

Result<std::int64_t> MemoryFileSystem::free_bytes(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  const std::string action = "ask the free space of";
  if (const int error = state_->next_call(); error != 0) return system_error(error, action, path);
  if (!state_->find(path, true)) return system_error(ENOENT, action, path);
  return state_->free_bytes;
}

std::uint32_t MemoryFileSystem::user_id() const noexcept { return kUser; }

Result<std::optional<FileLock>> MemoryFileSystem::try_lock(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  const auto no_locking = [&](int error) {
    return unsupported(system_error(error, "lock", path).message() + "; going on without a lock");
  };
  if (const int error = state_->next_call(); error != 0) return no_locking(error);
  const std::string real = state_->real_path(path, true);
  if (!state_->now.contains(parent_path(real))) return no_locking(ENOENT);
  if (!state_->now.contains(real)) state_->now[real] = state_->make_node(FileType::kRegular, 0600);
  if (!state_->locks.insert(real).second) return std::optional<FileLock>();
  return std::optional<FileLock>(FileLock(std::make_unique<MemoryLock>(state_, real)));
}

}  // namespace scanjit::os
