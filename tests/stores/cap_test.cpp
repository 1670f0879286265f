// The byte cap of the cache: what was used longest ago goes, also while others read and write.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <set>
#include <thread>

#include "engine_world.hpp"
#include "os/folder_sweep.hpp"
#include "os/memory_file_system.hpp"
#include "os/posix_file_system.hpp"
#include "store_world.hpp"
#include "support/wrapped_file_system.hpp"
#include "tuning/tuned_store.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::test;

namespace {

jit::StoredBinary sized(int number, std::size_t bytes = 4096) {
  jit::StoredBinary binary;
  binary.source_id = jit::make_source_id(std::to_string(number), "digest", {}, "sm_90a");
  binary.binary_id = jit::make_binary_id(binary.source_id, "13.0.88");
  binary.entry = "scale";
  binary.arch = "sm_90a";
  binary.nvrtc = "13.0.88";
  binary.cubin = std::to_string(number) + std::string(bytes, '.');
  return binary;
}

bool holds(jit::BinaryCache& cache, int number) {
  const jit::StoredBinary binary = sized(number);
  const auto found = cache.find(binary.source_id, binary.binary_id, "scale");
  if (found) CHECK(found->binary == binary);
  return found.has_value();
}

/// Bytes of the binaries in <cache>/bin, and how many there are.
std::pair<std::int64_t, int> content(os::FileSystem& files, const std::string& cache) {
  std::int64_t bytes = 0;
  int count = 0;
  const auto names = files.list_directory(cache + "/bin");
  REQUIRE(names.ok());
  for (const std::string& name : *names) {
    if (!name.ends_with(".cubin")) continue;
    const auto info = files.info(cache + "/bin/" + name);
    if (!info.ok()) continue;  // gone since
    bytes += info->size;
    ++count;
  }
  return {bytes, count};
}

const std::int64_t kFileBytes = static_cast<std::int64_t>(jit::encode_binary(sized(1)).size());

}  // namespace

TEST_CASE("beyond the cap the binaries unused longest go", "[cap]") {
  os::MemoryFileSystem files;
  const std::int64_t cap = 32 * kFileBytes;
  jit::BinaryCache cache(files, "/cache", {}, {}, cap);
  for (int i = 100; i < 131; ++i) cache.put(sized(i));
  // Used now, though written first.
  for (int i = 100; i < 105; ++i) CHECK(holds(cache, i));
  for (int i = 131; i < 150; ++i) cache.put(sized(i));
  CHECK(content(files, "/cache").first <= cap + cap / 16);
  for (int i = 100; i < 105; ++i) CHECK(holds(cache, i));
  CHECK_FALSE(holds(cache, 105));
  CHECK(holds(cache, 149));
}

TEST_CASE("the stamp is written when a file is read and never on a hit in memory", "[cap]") {
  const FakeNvrtc nvrtc;
  os::MemoryFileSystem files;
  REQUIRE(provider_on(files, "/cache")->get(numbered_kernel(1), "sm_90a").ok());
  const std::string path = "/cache/bin/" + files.list_directory("/cache/bin")->front();
  files.set_modified_ns(path, 5);
  const auto provider = provider_on(files, "/cache");
  REQUIRE(provider->get(numbered_kernel(1), "sm_90a")->from == "cache");
  CHECK(files.info(path)->modified_ns > 5);
  files.set_modified_ns(path, 5);
  const std::int64_t calls = files.calls();
  REQUIRE(provider->get(numbered_kernel(1), "sm_90a")->from == "memory");
  CHECK(files.calls() == calls);
  CHECK(files.info(path)->modified_ns == 5);

  using namespace tuning;
  StoreOptions options;
  options.files = &files;
  options.cache_dir = "/cache";
  options.gpu = samples::h200();
  REQUIRE(TunedStore(options).publish(samples::record()).ok());
  REQUIRE(TunedStore(options).publish(samples::record(samples::key(1, 1))).ok());
  const std::string folder = "/cache/tuned/" + samples::h200().directory() + "/";
  const std::string used = folder + samples::key().file_name();
  const std::string neighbour = folder + samples::key(1, 1).file_name();
  files.set_modified_ns(used, 5);
  files.set_modified_ns(neighbour, 5);
  const TunedStore store(options);
  REQUIRE(store.find(samples::query(), {}));
  REQUIRE_FALSE(store.find(samples::query(8, 1000), {}).has_value());  // looks at every entry
  CHECK(files.info(used)->modified_ns > 5);
  CHECK(files.info(neighbour)->modified_ns == 5);
}

TEST_CASE("a cap that one file fills, no cap, and damage that fills a folder", "[cap]") {
  os::MemoryFileSystem files;
  jit::BinaryCache tiny(files, "/tiny", {}, {}, 10);
  for (int i = 0; i < 5; ++i) tiny.put(sized(i));
  CHECK(content(files, "/tiny").second == 0);
  CHECK(tiny.counters().write_errors == 0);
  jit::BinaryCache open(files, "/open", {}, {});
  for (int i = 0; i < 50; ++i) open.put(sized(i));
  CHECK(content(files, "/open").second == 50);
  // What was set aside goes as soon as room is needed; what is not ours stays.
  files.put("/damaged/bin/x.cubin.corrupt-1", "junk");
  files.put("/damaged/bin/README", "mine");
  jit::BinaryCache damaged(files, "/damaged", {}, {}, 2 * kFileBytes);
  for (int i = 0; i < 4; ++i) damaged.put(sized(i));
  CHECK_FALSE(files.exists("/damaged/bin/x.cubin.corrupt-1"));
  CHECK(files.exists("/damaged/bin/README"));
  // Nor does anything go that a link leads to.
  files.put("/elsewhere/a.cubin", "x");
  files.put_symlink("/linked/bin", "/elsewhere");
  CHECK(os::sweep_folders(files, {"/linked/bin"}, jit::binary_file_kind, 0, 0)->removed_files == 0);
}

TEST_CASE("temporaries of a crash go an hour later, by the folder's own clock", "[cap]") {
  os::MemoryFileSystem files;
  constexpr std::int64_t kHour = std::int64_t{3600} * 1'000'000'000;
  files.put("/cache/bin/.tmp-1", "old");
  files.put("/cache/bin/.tmp-2", "new");
  files.put("/cache/bin/a.cubin", "x");
  files.set_modified_ns("/cache/bin/.tmp-1", 10);
  files.set_modified_ns("/cache/bin/.tmp-2", 2 * kHour);
  files.set_modified_ns("/cache/bin/a.cubin", 2 * kHour + 5);
  // The caller's clock is far behind: the newest file tells the time.
  const auto swept = os::sweep_folders(files, {"/cache/bin"}, jit::binary_file_kind, -1, 0);
  REQUIRE(swept.ok());
  CHECK(swept->removed_files == 1);
  CHECK_FALSE(files.exists("/cache/bin/.tmp-1"));
  CHECK(files.exists("/cache/bin/.tmp-2"));
  CHECK(swept->kept_bytes == 1);
}

TEST_CASE("a file that is used while it is about to be removed stays", "[cap]") {
  // Between the list and the removal the second file is read by somebody.
  class Busy final : public WrappedFileSystem {
   public:
    using WrappedFileSystem::WrappedFileSystem;
    [[nodiscard]] Status remove_file(const std::string& path) override {
      static_cast<void>(inner_.touch("/cache/bin/b.cubin"));
      return inner_.remove_file(path);
    }
  };
  os::MemoryFileSystem memory;
  for (const char* name : {"a", "b", "c"})
    memory.put(std::string("/cache/bin/") + name + ".cubin", "12345678");
  Busy files(memory);
  const auto swept = os::sweep_folders(files, {"/cache/bin"}, jit::binary_file_kind, 8, 0);
  REQUIRE(swept.ok());
  CHECK(swept->removed_files == 2);
  CHECK(memory.exists("/cache/bin/b.cubin"));
  CHECK(swept->kept_bytes == 8);
}

TEST_CASE("whatever call fails, a sweep removes no file but an old one and a write goes on",
          "[cap]") {
  std::int64_t nth = 1;
  for (bool finished = false; !finished; ++nth) {
    REQUIRE(nth < 500);
    os::MemoryFileSystem files;
    jit::BinaryCache cache(files, "/cache", {}, {}, 8 * kFileBytes);
    for (int i = 0; i < 8; ++i) cache.put(sized(i));
    const std::int64_t before = files.calls();
    files.fail_call(nth, EIO);
    for (int i = 8; i < 12; ++i) cache.put(sized(i));
    finished = files.calls() - before < nth;
    files.clear_fault();
    cache.put(sized(12));
    CHECK(holds(cache, 12));
    CHECK(content(files, "/cache").first <= 8 * kFileBytes);
    CHECK(cache.counters().corrupt_files == 0);
  }
  CHECK(nth > 30);
}

TEST_CASE("10,000 keys, threads that read and write them, and a cap", "[cap]") {
  const TemporaryDirectory folder;
  UnsyncedFileSystem files(os::posix_file_system());
  constexpr int kKeys = 10'000, kThreads = 4;
  const std::int64_t cap = 1000 * kFileBytes;
  // A cache for each thread, as for processes that know nothing of each other.
  std::vector<std::unique_ptr<jit::BinaryCache>> caches;
  for (int i = 0; i < kThreads; ++i)
    caches.push_back(std::make_unique<jit::BinaryCache>(files, folder.path(),
                                                        std::vector<std::string>(), Log(), cap));
  std::atomic<int> wrong{0}, hits{0};
  std::atomic<std::int64_t> largest{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      jit::BinaryCache& cache = *caches[static_cast<std::size_t>(t)];
      for (int i = t; i < kKeys; i += kThreads) {
        cache.put(sized(i));
        // One that another thread wrote lately, and one that may be gone.
        for (const int other : {std::max(0, i - 7), i / 2}) {
          const jit::StoredBinary expected = sized(other);
          const auto found = cache.find(expected.source_id, expected.binary_id, "scale");
          if (found && found->binary != expected) ++wrong;
          hits += found ? 1 : 0;
        }
        if (i % 1000 == t) {
          const std::int64_t now = content(files, folder.path()).first;
          std::int64_t seen = largest;
          while (now > seen && !largest.compare_exchange_weak(seen, now)) {
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::int64_t damaged = 0, errors = 0;
  for (const auto& cache : caches) {
    damaged += cache->counters().corrupt_files;
    errors += cache->counters().write_errors;
  }
  CHECK(wrong == 0);
  CHECK(damaged == 0);
  CHECK(errors == 0);
  CHECK(hits > kKeys / 2);
  const std::int64_t bound = cap + kThreads * (cap / 16 + kFileBytes);
  CHECK(largest <= bound);
  const auto [bytes, count] = content(files, folder.path());
  CHECK(bytes <= bound);
  CHECK(count > 700);
  const std::int64_t failures = wrong + damaged + errors + (largest > bound ? 1 : 0);
  report_count("10,000 kernels through a cache that holds 1,000, 4 writers", kKeys, failures,
               "\"largest_over_cap\":" +
                   std::to_string(static_cast<double>(largest) / static_cast<double>(cap)));
}

TEST_CASE("10,000 tuned entries under a cap, and all of them without", "[cap]") {
  using namespace tuning;
  const TemporaryDirectory folder;
  UnsyncedFileSystem files(os::posix_file_system());
  StoreOptions options;
  options.files = &files;
  options.cache_dir = folder.path();
  options.gpu = samples::h200();
  constexpr int kKeys = 10'000, kKept = 500;
  const auto query = [](int number) {
    KeyQuery one = samples::query(1, 1);
    one.key.K = 1 + number % 200;
    one.key.V = 1 + number / 200;
    return one;
  };
  const auto record = [&](TunedStore& store, int number) {
    return samples::record(store.key_of(query(number)), {16 + number, 32, 2, 4});
  };
  std::int64_t entry_bytes = 0;
  {
    TunedStore store(options);
    REQUIRE(store.publish(record(store, 0)).ok());
    const std::string path = folder.path() + "/tuned/" + options.gpu.directory() + "/" +
                             store.key_of(query(0)).file_name();
    entry_bytes = files.info(path)->size;
  }
  options.cache_max_bytes = kKept * entry_bytes;
  TunedStore store(options);
  int failures = 0;
  for (int i = 0; i < kKeys; ++i) failures += store.publish(record(store, i)).ok() ? 0 : 1;
  // In memory all of them are known; on disk the last ones are.
  for (int i = 0; i < kKeys; i += 97) {
    const auto pick = store.find_exact(query(i), {});
    failures += pick && pick->config.bv == 16 + i ? 0 : 1;
  }
  const auto items = list_store(files, folder.path());
  REQUIRE(items.ok());
  CHECK(items->size() > kKept / 2);
  CHECK(items->size() < kKept + kKept / 8);
  for (const StoreItem& item : *items) failures += item.status.ok() ? 0 : 1;
  TunedStore next(options);
  CHECK(next.find_exact(query(kKeys - 1), {}).has_value());
  CHECK_FALSE(next.find_exact(query(0), {}).has_value());
  CHECK(failures == 0);
  report_count("10,000 tuned entries through a cache that holds 500", kKeys, failures);
}

TEST_CASE("an engine's cap comes from its options, else from the environment, else is 1 GiB",
          "[cap]") {
  const FakeNvrtc nvrtc;
  const auto left = [](std::int64_t option, const std::string& variable_text, int warnings) {
    EngineWorld world;
    world.environment = fake_nvrtc_environment();
    world.environment.scanjit_cache_max_bytes = variable_text;
    world.options.cache_max_bytes = option;
    world.options.tune_mode = TuneMode::kOff;
    world.options.pack_dirs.clear();  // there is none, and the engine would say so
    CurrentContext context(world.driver);
    auto engine = world.engine();
    REQUIRE(engine.ok());
    const auto plan = engine->plan(small_layer());
    REQUIRE(plan.ok());
    CHECK(plan->why().binary_from == "compiled");
    CHECK(world.lines.size() == static_cast<std::size_t>(warnings));
    return content(world.files, "/cache").second;
  };
  CHECK(left(0, "", 0) == 1);
  CHECK(left(-1, "", 0) == 1);
  CHECK(left(80, "", 0) == 0);  // less than any binary: all of them go
  CHECK(left(0, "80", 0) == 0);
  CHECK(left(0, "-1", 0) == 1);
  CHECK(left(1 << 20, "80", 0) == 1);
  for (const char* bad : {"lots", "80 bytes", "0", "99999999999999999999"})
    CHECK(left(0, bad, 1) == 1);
}

TEST_CASE("idle locks go, held and young ones stay", "[cap]") {
  os::MemoryFileSystem files;
  constexpr std::int64_t kHour = std::int64_t{3600} * 1'000'000'000;
  for (const char* name : {"old.lock", "held.lock", "young.lock", "note.txt"}) {
    files.put(std::string("/cache/locks/") + name, "");
    files.set_modified_ns(std::string("/cache/locks/") + name, 1);
  }
  files.set_modified_ns("/cache/locks/young.lock", 2 * kHour);
  const auto held = files.try_lock("/cache/locks/held.lock");
  REQUIRE(held.ok());
  REQUIRE(held->has_value());
  CHECK(*os::remove_idle_locks(files, "/cache/locks", 2 * kHour) == 1);
  CHECK_FALSE(files.exists("/cache/locks/old.lock"));
  CHECK(files.list_directory("/cache/locks")->size() == 3);
  CHECK(*os::remove_idle_locks(files, "/nowhere", 2 * kHour) == 0);
}
