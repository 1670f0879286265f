#include "run_report.hpp"

#include <ostream>

#include "name_values.hpp"
#include "shape_source.hpp"
#include "terminal.hpp"
#include "tuning/key_json.hpp"

namespace scanjit::cli {

Status check_input(const RunOptions& options) {
  if (!options.in.empty()) return {};
  return invalid_argument(
      "no input file: name one by --in, or make one by --example x.safetensors");
}

Result<std::optional<Config>> forced_config(const RunOptions& options) {
  if (options.config.empty()) return std::optional<Config>();
  SCANJIT_ASSIGN_OR_RETURN(const Config config, parse_config(options.config));
  return std::optional<Config>(config);
}

std::vector<std::string> wanted_names(const RunOptions& options) {
  std::vector<std::string> names;
  for (const std::string& word : options.want) {
    for (std::string& name : split(word, ',')) names.push_back(std::move(name));
  }
  return names;
}

void report_example(Session& session, const RunOptions& options, const tuning::Shape& shape,
                    const TensorFile& file) {
  if (session.json) {
    Json names = Json::array();
    for (const io::TensorView& tensor : file.tensors) names.push_back(tensor.name);
    session.print_json("scanjit-run-example/1", {{"file", options.example},
                                                 {"shape", shape_argument(shape)},
                                                 {"tensors", std::move(names)}});
  } else {
    session.out << options.example << ": inputs of " << shape_argument(shape) << "\nnext: "
                << shell_line({session.arguments.front(), "run", options.op, "--in",
                               options.example, "--out", "y.safetensors", "--check"})
                << std::endl;
  }
}

Json run_fields(const RunOptions& options, const std::string& gpu, const Why& why,
                const TensorFile& file) {
  Json outputs = Json::array();
  for (const io::TensorView& tensor : file.tensors) {
    outputs.push_back(
        {{"name", tensor.name}, {"dtype", io::to_string(tensor.type)}, {"shape", tensor.shape}});
  }
  return {{"op", options.op},
          {"gpu", gpu},
          {"in", options.in},
          {"out", options.out},
          {"outputs", std::move(outputs)},
          {"config", tuning::config_json(why.config)},
          {"source", to_string(why.source)},
          {"layer", why.layer},
          {"binary_from", why.binary_from}};
}

void print_run(Session& session, const RunOptions& options, const Why& why,
               const TensorFile& file) {
  session.out << "config   " << to_string(why.config) << " (" << why.text << ")\n";
  for (const io::TensorView& tensor : file.tensors) {
    session.out << "output   " << tensor.name << " " << io::to_string(tensor.type) << " [";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i)
      session.out << (i == 0 ? "" : ",") << tensor.shape[i];
    session.out << "]\n";
  }
  if (!options.out.empty()) session.out << "written  " << options.out << '\n';
}

}  // namespace scanjit::cli
