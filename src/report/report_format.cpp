#include "report/report_format.h"

#include <array>

#include "report/html.h"
#include "report/json.h"
#include "report/junit.h"
#include "report/markdown.h"
#include "report/sarif.h"

namespace distgrad {
namespace {

constexpr ReportFormat kJson = {
    "--json", "write the JSON report; - is standard output",
    [](const Report& report, const FormatContext& context) {
      return json_report_text(report,
                              {context.text.full, context.host, context.hosts, context.mesh_order});
    }};

constexpr std::array kFormats = {&kJson, &kJUnit, &kMarkdown, &kSarif, &kHtml};

}  // namespace

std::span<const ReportFormat* const> report_formats() { return kFormats; }

}  // namespace distgrad
