// Text in HTML, and in Markdown, which takes HTML.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// As markup shows it: valid_text() with &, < and > as entities, and what of `also` occurs, such as
// the quotes and line breaks that an attribute would not keep.
std::string markup_escaped(std::string_view text, std::string_view also = {});

// For HTML's elements, and attributes in quotes.
std::string html_escaped(std::string_view text);

// The same of prose, with what stands between backticks as code.
std::string html_prose(std::string_view text);

}  // namespace distgrad
