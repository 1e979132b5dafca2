// distgrad: the driver.
#include "cli/command.h"

int main(int argc, char** argv) { return distgrad::run_main({argv + 1, argv + argc}); }
