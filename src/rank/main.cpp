// distgrad-rank is the program that simulates and whose processes are the ranks. The driver starts
// it as a zygote, or a user to find out which of the backend's collectives are right.
#include "rank/library.h"

int main(int argc, char** argv) { return distgrad_rank_main(argc, argv); }
