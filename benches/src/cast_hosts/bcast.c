/* Broadcasts some bytes from rank 0, some times, and prints the seconds of the slowest rank. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int bytes = argc > 2 ? atoi(argv[1]) : 0, rounds = argc > 2 ? atoi(argv[2]) : 0;
    char *buffer = malloc(bytes);
    if (bytes < 1 || rounds < 1 || buffer == NULL) {
        fprintf(stderr, "bcast BYTES ROUNDS, with memory for the bytes\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(buffer, rank, bytes);
    for (int round = 0; round < rounds; round++) {
        double own, longest;
        MPI_Barrier(MPI_COMM_WORLD);
        own = -MPI_Wtime();
        MPI_Bcast(buffer, bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
        own += MPI_Wtime();
        MPI_Reduce(&own, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("%.6f\n", longest);
        }
    }
    MPI_Finalize();
    return 0;
}
