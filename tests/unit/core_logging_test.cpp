#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/logging.hpp"
#include "support/catch.hpp"

using scanjit::Log;
using scanjit::LogLevel;

namespace {

struct Lines {
  std::mutex mutex;
  std::vector<std::pair<LogLevel, std::string>> all;
  scanjit::LogSink sink() {
    return [this](LogLevel level, const std::string& text) {
      const std::lock_guard lock(mutex);
      all.emplace_back(level, text);
    };
  }
};

}  // namespace

TEST_CASE("A log hands each line to its sink, unchanged and with its level", "[core]") {
  Lines lines;
  const Log log(lines.sink());
  log.debug("plain {} %s text\nwith a second line");
  log.info([] { return std::string("made when wanted"); });
  log.warning("");
  log.error(std::string("with a zero \0 inside", 20));
  REQUIRE(lines.all.size() == 4);
  CHECK(lines.all[0] ==
        std::pair(LogLevel::kDebug, std::string("plain {} %s text\nwith a second line")));
  CHECK(lines.all[1] == std::pair(LogLevel::kInfo, std::string("made when wanted")));
  CHECK(lines.all[2] == std::pair(LogLevel::kWarning, std::string()));
  CHECK(lines.all[3].first == LogLevel::kError);
  CHECK(lines.all[3].second.size() == 20);
}

TEST_CASE("A silent log makes no text", "[core]") {
  bool made = false;
  for (const Log& log : {Log(), Log(scanjit::LogSink())}) {
    CHECK_FALSE(log.enabled());
    log.debug([&] {
      made = true;
      return std::string();
    });
    log.error("nobody hears this");
    log.warn_once("key", "nor this");
  }
  CHECK_FALSE(made);
}

TEST_CASE("A warning of one key is written once, through copies and threads too", "[core]") {
  Lines lines;
  const Log log(lines.sink());
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([copy = log] {
      for (int n = 0; n < 100; ++n) {
        copy.warn_once("cache", "the cache cannot be written");
        copy.warn_once("pack", "the pack is damaged");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(lines.all.size() == 2);
  const Log other(lines.sink());
  other.warn_once("cache", "another log has a memory of its own");
  CHECK(lines.all.size() == 3);
}

TEST_CASE("A sink that throws is not noticed", "[core]") {
  std::atomic<int> calls = 0;
  const Log standard([&](LogLevel, const std::string&) {
    ++calls;
    throw std::runtime_error("the sink is broken");
  });
  const Log odd([&](LogLevel, const std::string&) {
    ++calls;
    throw 3;
  });
  standard.info("one");
  odd.info("two");
  standard.warn_once("key", "three");
  CHECK(calls == 3);
}
