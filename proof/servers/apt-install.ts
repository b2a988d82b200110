// Installs a package of Debian where that is allowed: as root, with apt-get. Test files ask for different servers at the same time, so it waits for
// the lock of another installation instead of failing.
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";

const APT = "/usr/bin/apt-get";

export function mayAptInstall(): boolean {
  return process.getuid?.() === 0 && existsSync(APT);
}

export function aptInstall(name: string): void {
  execFileSync(APT, ["-o", "DPkg::Lock::Timeout=300", "install", "-y", "--no-install-recommends", name], {
    stdio: "pipe",
    env: { ...process.env, DEBIAN_FRONTEND: "noninteractive" },
  });
}
