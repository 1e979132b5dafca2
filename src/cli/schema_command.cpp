// distgrad schema scenario|report
#include <cstdio>

#include "base/error.h"
#include "cli/command.h"
#include "cli/parse_arguments.h"
#include "report/json.h"
#include "report/schema.h"
#include "scenario/schema.h"

namespace distgrad {

ExitCode schema_command(const Arguments& arguments) {
  CLI::App app("Print a JSON Schema, for editors and validators.", "distgrad schema");
  std::string which;
  app.add_option("WHICH", which, "scenario or report")->required();
  describe(app, "Example: distgrad schema scenario > scenario.schema.json\n");
  if (const auto done = parse_arguments(app, arguments)) return *done;
  if (which != "scenario" && which != "report")
    throw UserError("schema: there is one of \"scenario\" and one of \"report\", none of \"" +
                    which + "\"");
  const std::string text = which == "scenario" ? scenario_schema() : json_text(report_schema());
  std::fputs(text.c_str(), stdout);
  return ExitCode::kAsExpected;
}

}  // namespace distgrad
