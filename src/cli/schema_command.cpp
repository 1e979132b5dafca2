// distgrad schema scenario|report|golden

#include "base/error.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "cli/say.h"
#include "golden/schema.h"
#include "report/json.h"
#include "report/schema.h"
#include "scenario/schema.h"

namespace distgrad {

ExitCode schema_command(const Arguments& arguments) {
  CLI::App app("Print a JSON Schema, for editors and validators.", "distgrad schema");
  std::string which;
  app.add_option("WHICH", which, "scenario, report or golden")
      ->required()
      ->type_name(choices_text({"scenario", "report", "golden"}));
  describe(app, "Example: distgrad schema scenario > scenarios/distgrad.schema.json\n");
  if (const auto done = parse_arguments(app, arguments)) return *done;
  std::string text;
  if (which == "scenario")
    text = scenario_schema();
  else if (which == "report")
    text = json_text(report_schema());
  else if (which == "golden")
    text = json_text(golden::schema());
  else
    throw UserError("schema: there is one of \"scenario\", \"report\" and \"golden\", none of \"" +
                    which + "\"");
  put_raw(text);
  return ExitCode::kAsExpected;
}

}  // namespace distgrad
