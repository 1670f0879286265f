#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "os/memory_file_system.hpp"
#include "os/posix_file_system.hpp"
#include "support/catch.hpp"
#include "support/temporary_directory.hpp"
#include "tuning/tuned_store.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;

namespace {

StoreOptions options_over(os::FileSystem& files, const std::string& cache_dir) {
  StoreOptions options;
  options.files = &files;
  options.cache_dir = cache_dir;
  options.gpu = samples::h200();
  options.toolchain = samples::toolchain();
  return options;
}

constexpr std::int64_t kCounts[] = {1, 2, 4, 8, 16};
constexpr std::int64_t kChunks[] = {1, 4, 16, 100, 1000};

/// An entry whose config names its key, so that a mix-up shows.
Record marked(std::int64_t sequences, std::int64_t chunks, int writer) {
  return samples::record(samples::key(sequences, chunks),
                         {static_cast<int>(sequences), static_cast<int>(chunks), 1 + writer, 1});
}

/// Publishes and finds every key in turn; the number of wrong answers.
int work(TunedStore& store, int writer, int rounds) {
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    for (const std::int64_t sequences : kCounts) {
      for (const std::int64_t chunks : kChunks) {
        const KeyQuery query = samples::query(sequences, chunks);
        if (round % 2 == writer % 2)
          wrong += !store.publish(marked(sequences, chunks, writer)).ok();
        store.forget(store.key_of(query));
        const auto pick = store.find_exact(query, {});
        if (pick) wrong += pick->config.bv != sequences || pick->config.bk != chunks;
        const auto any = store.find(query, {});
        if (any && any->source == PickSource::kExact) wrong += any->config.bv != sequences;
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("threads publish into and look up one store", "[tuning][concurrency]") {
  os::MemoryFileSystem files;
  StoreOptions options = options_over(files, "/cache");
  const std::string shipped =
      to_json(TunedFile{samples::h200(), {}, {marked(1, 1, 9)}}, Checksum::kWithout);
  options.shipped.push_back({"shipped.json", shipped});
  TunedStore store(options);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < 6; ++writer) {
    threads.emplace_back([&, writer] { wrong += work(store, writer, 6); });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(wrong == 0);
  REQUIRE(store.stats().corrupt_files == 0);
  for (const std::int64_t sequences : kCounts) {
    for (const std::int64_t chunks : kChunks)
      REQUIRE(store.find_exact(samples::query(sequences, chunks), {}).has_value());
  }
}

TEST_CASE("two processes share a cache directory", "[tuning][concurrency]") {
  const test::TemporaryDirectory directory;
  std::vector<pid_t> children;
  for (int writer = 0; writer < 2; ++writer) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      int wrong = 1;
      {
        TunedStore store(options_over(os::posix_file_system(), directory.path()));
        wrong = work(store, writer, 4) + static_cast<int>(store.stats().corrupt_files);
      }
      ::_exit(wrong == 0 ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int state = 0;
    REQUIRE(::waitpid(child, &state, 0) == child);
    REQUIRE(WIFEXITED(state));
    REQUIRE(WEXITSTATUS(state) == 0);
  }
  const Result<std::vector<StoreItem>> items =
      list_store(os::posix_file_system(), directory.path());
  REQUIRE(items.ok());
  REQUIRE(items->size() == 25);
  for (const StoreItem& item : *items) {
    INFO(item.path << " " << item.status.message());
    REQUIRE(item.status.ok());
  }
}
