/* SPDX-License-Identifier: Apache-2.0 */
/* notify.c: sd_notify's protocol: a datagram to the socket named by $NOTIFY_SOCKET, if a service
 * manager has set it (Type=notify in dist/kvasir.service). Failures are ignored. */
#include "cli.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof to.sun_path || (path[0] != '/' && path[0] != '@'))
        return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@') /* the abstract name space */
        to.sun_path[0] = 0;
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (const struct sockaddr *)&to,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}
