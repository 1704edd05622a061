/* The host's clock as a program sees it, moved by the seconds that a file says: LANEFS_TEST_CLOCK is its name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*of_host)(clockid_t, struct timespec *);
    if (!of_host)
        of_host = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = of_host(clock, time);
    if (result == 0 && clock == CLOCK_REALTIME) {
        char text[32] = {0};
        int file = open(getenv("LANEFS_TEST_CLOCK"), O_RDONLY | O_CLOEXEC);
        if (file >= 0 && read(file, text, sizeof text - 1) > 0)
            time->tv_sec += atol(text);
        if (file >= 0)
            close(file);
    }
    return result;
}
