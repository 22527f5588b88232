/* Reports what a pod may do: as whom it runs, and whether it can write the file that its argument names. The report becomes
   the termination message of the container. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_GROUPS 64

int main(int count, char **arguments) {
  gid_t groups[MAX_GROUPS];
  FILE *report = fopen("/dev/termination-log", "w");
  int number = getgroups(MAX_GROUPS, groups);
  if (count != 2 || !report || number < 0) return 1;
  fprintf(report, "uid=%d gid=%d groups=", getuid(), getgid());
  for (int i = 0; i < number; i++) fprintf(report, "%s%d", i ? "," : "", groups[i]);
  int file = open(arguments[1], O_CREAT | O_EXCL | O_WRONLY, 0660);
  int written = file >= 0 && write(file, "data", 4) == 4 && close(file) == 0;
  fprintf(report, " write=%s", written ? "done" : strerror(errno));
  return fclose(report) != 0;
}
