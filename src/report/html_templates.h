// Hold the files of html/, embedded at build time (tools/cmake/embed.cmake).
#pragma once

#include <string_view>

namespace distgrad {

extern const std::string_view kReport_html, kReport_css, kText_js, kList_js, kProgram_js,
    kHeat_map_js, kMatrix_js, kValue_trace_js, kCase_js, kReport_js;

}  // namespace distgrad
