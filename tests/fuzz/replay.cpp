// Where libFuzzer is not at hand: runs a fuzz target on each file of the directories named, and
// then on `-runs=N` random changes of them, the same ones every time.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
// Only targets that prepare something have one.
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace {

void run(const std::string& bytes) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

/// One to four changes: a piece gone, doubled, moved here from another file, or a byte changed.
std::string changed(std::string bytes, const std::vector<std::string>& others,
                    std::mt19937_64& random) {
  for (std::uint64_t n = 1 + random() % 4; n > 0; --n) {
    const std::size_t at = random() % (bytes.size() + 1);
    const std::size_t length = random() % 16;
    const std::string& other = others[random() % others.size()];
    switch (random() % 5) {
      case 0: bytes.erase(at, length); break;
      case 1: bytes.insert(at, bytes.substr(at, length)); break;
      case 2: bytes.insert(at, other.substr(random() % (other.size() + 1), length)); break;
      case 3: bytes.insert(at, 1, static_cast<char>(random())); break;
      default:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);
  std::uint64_t runs = 0;
  std::vector<std::string> seeds;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "-runs=", 6) == 0) {
      runs = std::strtoull(argv[i] + 6, nullptr, 10);
      continue;
    }
    for (const std::filesystem::directory_entry& entry :
         std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream stream(entry.path(), std::ios::binary);
      seeds.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);  // the last one named is the one that crashed
      run(seeds.back());
    }
  }
  if (seeds.empty()) {
    std::printf("no file to replay\n");
    return 1;
  }
  std::mt19937_64 random(1);
  for (std::uint64_t n = 0; n < runs; ++n)
    run(changed(seeds[random() % seeds.size()], seeds, random));
  std::printf("%zu files and %llu changes of them\n", seeds.size(),
              static_cast<unsigned long long>(runs));
  return 0;
}
