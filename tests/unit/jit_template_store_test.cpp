#include "jit/template_store.hpp"

#include "os/memory_file_system.hpp"
#include "support/catch.hpp"

using namespace scanjit;
using namespace scanjit::jit;

namespace {

TemplateStore store_of(const std::string& tile) {
  return TemplateStore::from_files(
      {{"scale/scale.cu", "#include \"common/tile.cuh\"\n  # include  \"scale/params.h\"\nbody\n"},
       {"scale/params.h", "params"},
       {"common/tile.cuh", "#include \"common/types.cuh\"\n" + tile},
       {"common/types.cuh", "#include \"common/tile.cuh\" // a circle\n"},
       {"other/other.cu", "#include <vector>\n"}});
}

std::vector<std::string> names_of(const std::vector<TemplateFile>& files) {
  std::vector<std::string> names;
  for (const TemplateFile& file : files) names.push_back(file.name);
  return names;
}

}  // namespace

TEST_CASE("a template's closure follows its includes, circles too", "[jit]") {
  const auto files = store_of("x").closure("scale/scale.cu");
  REQUIRE(files.ok());
  CHECK(names_of(*files) == std::vector<std::string>{"scale/scale.cu", "common/tile.cuh",
                                                     "common/types.cuh", "scale/params.h"});
}

TEST_CASE("an include from outside the templates is refused, naming both", "[jit]") {
  const auto files = store_of("x").closure("other/other.cu");
  REQUIRE_FALSE(files.ok());
  CHECK(files.status().code() == ErrorCode::kNotFound);
  CHECK(files.status().message().find("other/other.cu") != std::string::npos);
  CHECK(files.status().message().find("vector") != std::string::npos);
  CHECK(store_of("x").closure("none.cu").status().code() == ErrorCode::kNotFound);
}

TEST_CASE("the digest changes with any file of the closure and no other", "[jit]") {
  const auto digest = store_of("x").digest("scale/scale.cu");
  REQUIRE(digest.ok());
  CHECK(*store_of("y").digest("scale/scale.cu") != *digest);
  CHECK(*store_of("x").digest("scale/scale.cu") == *digest);
  auto files = *store_of("x").closure("scale/scale.cu");
  files.push_back({"more.cuh", "unused"});
  CHECK(*TemplateStore::from_files(files).digest("scale/scale.cu") == *digest);
}

TEST_CASE("the embedded templates are complete", "[jit]") {
  os::MemoryFileSystem files;
  const auto store = TemplateStore::open({}, files);
  REQUIRE(store.ok());
  int templates = 0;
  for (const std::string& name : store->names()) {
    if (!name.ends_with(".cu")) continue;
    INFO(name);
    CHECK(store->closure(name).ok());
    ++templates;
  }
  CHECK(templates > 0);
}

TEST_CASE("SCANJIT_TEMPLATE_DIR replaces the embedded templates", "[jit]") {
  os::MemoryFileSystem files;
  files.put("/dev/templates/scale/scale.cu", "#include \"common/a.cuh\"\n");
  files.put("/dev/templates/common/a.cuh", "a");
  files.put("/dev/templates/README.md", "no template");
  files.put("/dev/empty/notes.txt", "nothing");
  Environment environment;
  environment.scanjit_template_dir = "/dev/templates";
  const auto store = TemplateStore::open(environment, files);
  REQUIRE(store.ok());
  CHECK(store->names() == std::vector<std::string>{"common/a.cuh", "scale/scale.cu"});
  CHECK(store->closure("scale/scale.cu").ok());
  for (const char* dir : {"/dev/empty", "/dev/none"}) {
    environment.scanjit_template_dir = dir;
    const auto missing = TemplateStore::open(environment, files);
    REQUIRE_FALSE(missing.ok());
    CHECK(missing.status().message().find("SCANJIT_TEMPLATE_DIR") != std::string::npos);
  }
}
