// The program `tapegrad`: one file per subcommand.
#include <tapegrad/models/apps/command.h>
#include <tapegrad/models/apps/process.h>
#include <tapegrad/models/tokenizers/utf8.h>

int main(int argc, char** argv) {
  tg::apps::prepare_streams();
  const int status = tg::apps::run_command_line(
      argc, argv,
      {tg::apps::train_command(), tg::apps::finetune_command(), tg::apps::merge_command(), tg::apps::export_command(),
       tg::apps::generate_command(), tg::apps::eval_command(), tg::apps::inspect_command(), tg::apps::compare_command(),
       tg::apps::tokenizer_command(), tg::apps::tokenize_command(), tg::apps::plot_command(),
       tg::apps::reproduce_command(), tg::apps::selftest_command()},
      tg::apps::rank_of_error, tg::apps::end_ranks);
  if (const std::string note = tg::detail::note_of_nfc(); !note.empty()) tg::apps::print_note(note);
  return status;
}
