# cmake -DOUTPUT=x.cpp -DHEADER=report/html_templates.h -DFILES=a.html,b.css -P embed.cmake
#
# Writes a C++ source that defines, for each file, the std::string_view that the header declares in
# the namespace distgrad: report.css is kReport_css. The files stay what they are, to be edited and
# linted as such. With -DALL=kName they are one text, in their order. Strings are cut since compilers
# need not take long ones.
string(REPLACE "," ";" files "${FILES}")
set(source "// Made by tools/cmake/embed.cmake.\n#include \"${HEADER}\"\n\nnamespace distgrad {\n")

function(embed constant text)
  string(APPEND source "\nconst std::string_view ${constant} =")
  string(LENGTH "${text}" length)
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 8000 part)
    string(APPEND source "\n    R\"embedded~(${part})embedded~\"")
    math(EXPR at "${at} + 8000")
  endwhile()
  set(source "${source};\n" PARENT_SCOPE)
endfunction()

set(all "")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  if(ALL)
    string(APPEND all "${text}")
    continue()
  endif()
  get_filename_component(name "${file}" NAME)
  string(MAKE_C_IDENTIFIER "${name}" identifier)
  string(SUBSTRING "${identifier}" 0 1 first)
  string(SUBSTRING "${identifier}" 1 -1 rest)
  string(TOUPPER "${first}" first)
  embed("k${first}${rest}" "${text}")
endforeach()
if(ALL)
  embed("${ALL}" "${all}")
endif()
string(APPEND source "\n}  // namespace distgrad\n")
file(WRITE "${OUTPUT}" "${source}")
