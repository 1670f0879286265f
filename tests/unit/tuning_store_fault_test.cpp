// Every call to the file system fails once, in turn: the store must serve from memory all the same,
// and what lies on disk afterwards must be an old entry, a new entry, or nothing.
#include <cerrno>

#include "os/memory_file_system.hpp"
#include "support/catch.hpp"
#include "tuning/tuned_store.hpp"
#include "tuning_samples.hpp"

using namespace scanjit;
using namespace scanjit::tuning;

namespace {

StoreOptions options_over(os::MemoryFileSystem& files) {
  StoreOptions options;
  options.files = &files;
  options.cache_dir = "/cache";
  options.gpu = samples::h200();
  options.toolchain = samples::toolchain();
  return options;
}

const Config kOld{16, 32, 2, 2}, kNew{64, 64, 2, 4};

void check_disk(os::MemoryFileSystem& files, bool old_was_there) {
  TunedStore next(options_over(files));
  const auto pick = next.find(samples::query(), {});
  REQUIRE(next.stats().corrupt_files == 0);
  if (pick) REQUIRE((pick->config == kNew || (old_was_there && pick->config == kOld)));
  if (old_was_there) REQUIRE(pick.has_value());
}

}  // namespace

TEST_CASE("publishing survives the failure of any one call", "[tuning][fault]") {
  for (const bool old_is_there : {false, true}) {
    for (const bool persist : {false, true}) {
      for (const int error : {ENOSPC, EIO, EROFS, EACCES}) {
        bool finished = false;
        for (std::int64_t nth = 1; !finished; ++nth) {
          REQUIRE(nth < 200);
          os::MemoryFileSystem files;
          if (old_is_there)
            REQUIRE(TunedStore(options_over(files))
                        .publish(samples::record(samples::key(), kOld))
                        .ok());
          TunedStore store(options_over(files));
          const std::int64_t before = files.calls();
          files.fail_call(nth, error, persist);
          const Status status = store.publish(samples::record(samples::key(), kNew));
          finished = files.calls() - before < nth;
          const auto pick = store.find(samples::query(), {});
          REQUIRE(pick.has_value());
          REQUIRE(pick->config == kNew);
          REQUIRE((status.ok() || status.code() == ErrorCode::kIoError ||
                   status.code() == ErrorCode::kUnsupported));
          if (!status.ok()) REQUIRE(store.stats().publish_errors == 1);
          if (finished) REQUIRE(status.ok());
          files.clear_fault();
          check_disk(files, old_is_there);
          files.crash(os::CrashKeeps::kSyncedOnly);
          check_disk(files, old_is_there);
        }
      }
    }
  }
}

TEST_CASE("looking up survives the failure of any one call", "[tuning][fault]") {
  for (const bool damaged : {false, true}) {
    bool finished = false;
    for (std::int64_t nth = 1; !finished; ++nth) {
      REQUIRE(nth < 200);
      os::MemoryFileSystem files;
      REQUIRE(TunedStore(options_over(files)).publish(samples::record(samples::key(), kOld)).ok());
      REQUIRE(
          TunedStore(options_over(files)).publish(samples::record(samples::key(8, 16), kOld)).ok());
      if (damaged)
        files.put("/cache/tuned/" + samples::h200().directory() + "/" + samples::key().file_name(),
                  "junk");
      TunedStore store(options_over(files));
      const std::int64_t before = files.calls();
      files.fail_call(nth, EIO);
      const auto pick = store.find(samples::query(), {});
      finished = files.calls() - before < nth;
      if (pick) REQUIRE(pick->config == kOld);
      if (finished) REQUIRE(pick.has_value());
      files.clear_fault();
      REQUIRE(store.publish(samples::record(samples::key(), kNew)).ok());
      REQUIRE(store.find(samples::query(), {})->config == kNew);
    }
  }
}

TEST_CASE("a crash right after publishing keeps the entry", "[tuning][fault]") {
  for (const os::CrashKeeps keeps : {os::CrashKeeps::kSyncedOnly, os::CrashKeeps::kNames}) {
    os::MemoryFileSystem files;
    REQUIRE(files.make_directories("/cache/tuned/" + samples::h200().directory()).ok());
    REQUIRE(TunedStore(options_over(files)).publish(samples::record(samples::key(), kNew)).ok());
    files.crash(keeps);
    REQUIRE(TunedStore(options_over(files)).find_exact(samples::query(), {})->config == kNew);
  }
}

TEST_CASE("importing and collecting garbage survive the failure of any one call",
          "[tuning][fault]") {
  bool finished = false;
  for (std::int64_t nth = 1; !finished; ++nth) {
    REQUIRE(nth < 500);
    os::MemoryFileSystem files;
    REQUIRE(TunedStore(options_over(files)).publish(samples::record(samples::key(), kOld)).ok());
    files.put("/cache/tuned/" + samples::h200().directory() + "/x.json.corrupt-1", "junk");
    const std::int64_t before = files.calls();
    files.fail_call(nth, EIO);
    const Result<std::int64_t> written = import_into_store(
        files, "/cache", TunedFile{samples::h200(), {}, {samples::record(samples::key(), kNew)}});
    const Result<os::SweepResult> collected = collect_garbage(files, "/cache", -1, 0);
    finished = files.calls() - before < nth;
    if (finished)
      REQUIRE((written.ok() && *written == 1 && collected.ok() && collected->removed_files == 1));
    files.clear_fault();
    check_disk(files, true);
  }
}
