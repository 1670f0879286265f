#include <unistd.h>

#include <csignal>
#include <iostream>

#include "command_line.hpp"

int main(int argc, char** argv) {
  // A reader that went away (`scanjit cache ls | head`) ends the program by an error of the stream.
  std::signal(SIGPIPE, SIG_IGN);
  scanjit::cli::Session session{
      std::cin, std::cout, std::cerr, scanjit::read_environment(), {argv, argv + argc}};
  session.err_is_terminal = isatty(STDERR_FILENO) == 1;
  const int exit = scanjit::cli::run_command_line(session);
  std::cout.flush();
  return std::cout ? exit : scanjit::cli::kExitEnvironment;
}
