/* The pause container keeps the namespaces of a pod while its containers restart. */
#include <signal.h>
#include <unistd.h>

static void end(int signal) {
  (void)signal;
  _exit(0);
}

int main(void) {
  /* The first process of a PID namespace ignores signals without a handler. */
  signal(SIGTERM, end);
  signal(SIGINT, end);
  for (;;) pause();
}
