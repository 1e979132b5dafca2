// Text in HTML, and in Markdown, which takes HTML.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// For elements: valid_text() with &, < and > as entities.
std::string markup_escaped(std::string_view text);

// For elements, and attributes in quotes.
std::string html_escaped(std::string_view text);

// The same of prose, with what stands between backticks as code.
std::string html_prose(std::string_view text);

}  // namespace distgrad
