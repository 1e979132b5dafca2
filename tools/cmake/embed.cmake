# cmake -DOUTPUT=x.cpp -DHEADER=report/html_templates.h -DFILES=a.html,b.css -P embed.cmake
#
# Writes a C++ source that defines, for each file, the std::string_view that the header declares in
# the namespace distgrad: report.css is kReport_css. The files stay what they are, to be edited and
# linted as such. Strings are cut since compilers need not take long ones.
string(REPLACE "," ";" files "${FILES}")
set(source "// Made by tools/cmake/embed.cmake.\n#include \"${HEADER}\"\n\nnamespace distgrad {\n")
foreach(file IN LISTS files)
  get_filename_component(name "${file}" NAME)
  string(MAKE_C_IDENTIFIER "${name}" identifier)
  string(SUBSTRING "${identifier}" 0 1 first)
  string(SUBSTRING "${identifier}" 1 -1 rest)
  string(TOUPPER "${first}" first)
  file(READ "${file}" text)
  string(APPEND source "\nconst std::string_view k${first}${rest} =")
  string(LENGTH "${text}" length)
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 8000 part)
    string(APPEND source "\n    R\"embedded~(${part})embedded~\"")
    math(EXPR at "${at} + 8000")
  endwhile()
  string(APPEND source ";\n")
endforeach()
string(APPEND source "\n}  // namespace distgrad\n")
file(WRITE "${OUTPUT}" "${source}")
