/* Runs one program and reports what it cost, on the descriptor REPORT, in two lines:
 *     pid PID
 *     end WALL_NS USER_US SYSTEM_US MAXRSS_KIB STATUS
 * Usage: measure REPORT ROOT PROGRAM [ARGUMENT…]     (ROOT: "/" or a directory to chroot into)
 *
 * It exists because a program started straight from Python inherits Python's peak of resident memory: the kernel
 * carries the peak of the memory it replaces over an exec. Times include the program's own children that it waited
 * for. SIGTERM and SIGINT are passed on. The program dies when measure does, and measure when its parent does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile pid_t program;

static void pass_on(int signal) {
    if (program > 0)
        kill(program, signal);
}

static void die(const char *what) {
    fprintf(stderr, "measure: %s: %s\n", what, strerror(errno));
    exit(127);
}

static void run(const char *root, char **argv, const char *cwd) {
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
        die("prctl");
    /* A group of its own, so that whatever it starts can be ended with it. */
    if (setpgid(0, 0) != 0)
        die("setpgid");
    if (strcmp(root, "/") != 0) {
        if (chroot(root) != 0)
            die(root);
        if (chdir(cwd) != 0)
            die(cwd);
    }
    execvp(argv[0], argv);
    die(argv[0]);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: measure REPORT ROOT PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    FILE *report = fdopen(atoi(argv[1]), "w");
    char *cwd = getcwd(NULL, 0);
    if (report == NULL || cwd == NULL)
        die("start");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct sigaction action = {.sa_handler = pass_on, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);

    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        fclose(report);
        run(argv[2], argv + 3, cwd);
    }
    program = child;
    fprintf(report, "pid %d\n", (int)child);
    fflush(report);

    int status;
    struct rusage usage;
    while (wait4(child, &status, 0, &usage) < 0)
        if (errno != EINTR)
            die("wait4");
    clock_gettime(CLOCK_MONOTONIC, &end);
    long long wall = (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
    long long user = usage.ru_utime.tv_sec * 1000000LL + usage.ru_utime.tv_usec;
    long long system = usage.ru_stime.tv_sec * 1000000LL + usage.ru_stime.tv_usec;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    fprintf(report, "end %lld %lld %lld %ld %d\n", wall, user, system, usage.ru_maxrss, code);
    return fclose(report) == 0 ? 0 : 1;
}
