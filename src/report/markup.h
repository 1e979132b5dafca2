// Escapes text for HTML, and for Markdown, which takes HTML.
#pragma once

#include <string>
#include <string_view>

namespace distgrad {

// Escapes text for elements: valid_text() with &, < and > as entities.
std::string markup_escaped(std::string_view text);

// Escapes text for elements, and for attributes in quotes.
std::string html_escaped(std::string_view text);

// Does the same for prose, with text between backticks as code.
std::string html_prose(std::string_view text);

}  // namespace distgrad
