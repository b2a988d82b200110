// Processes in surroundings of their own: what systemd, containers and mounts do to a process, without any of them.
import { spawnSync } from "node:child_process";
import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";

/** The options of a test that makes namespaces. */
export const inNamespaces: { readonly skip?: string } =
  spawnSync("unshare", ["-m", "true"]).status === 0 ? {} : { skip: "needs root on Linux, to make namespaces" };

/** A program that takes Node's arguments and runs Node with `options` of unshare, after the commands of `setup`. */
export function nodeUnder(folder: string, name: string, options: string, setup = "true"): string {
  const path = join(folder, `${name}.sh`);
  writeFileSync(
    path,
    `#!/bin/sh\nexec unshare ${options} sh -c '${setup} && exec "$@"' sh '${process.execPath}' "$@"\n`,
  );
  chmodSync(path, 0o755);
  return path;
}

/** As systemd's ProcSubset=pid: /proc has nothing but processes, so the kernel's boot id can't be read. */
export function nodeWithoutProcSys(folder: string): string {
  return nodeUnder(folder, "node-without-proc-sys", "-m", "mount -t proc -o subset=pid proc /proc");
}
