// Who this process is: unique per boot, so that a pid or a host name that comes again can't hide an orphan.
import { readFileSync } from "node:fs";
import { hostname } from "node:os";
import type { Random } from "../core/clock.ts";

export interface ProcessIdentity {
  readonly host: string;
  readonly bootId: string;
  readonly pid: number;
}

export function processIdentity(): ProcessIdentity {
  return { host: hostname().slice(0, 100), bootId: bootId(), pid: process.pid };
}

/** `host-pid-start-random`, printable and safe in file names. */
export function newWorkerId(identity: ProcessIdentity, random: Random): string {
  const host = identity.host.replaceAll(/[^A-Za-z0-9.-]/g, "").slice(0, 40) || "host";
  const started = Math.round(performance.timeOrigin).toString(36);
  return `${host}-${identity.pid}-${started}-${random.hex(4)}`;
}

let cachedBootId: string | undefined;

/** The kernel's own id of this boot on Linux. Elsewhere the boot time to the minute, which a reboot changes. */
function bootId(): string {
  if (cachedBootId === undefined) {
    try {
      cachedBootId = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    } catch {
      cachedBootId = `${hostname()}-${Math.round((Date.now() / 1000 - process.uptime()) / 60)}`;
    }
  }
  return cachedBootId;
}
