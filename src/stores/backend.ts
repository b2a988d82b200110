// What a store provides in addition to the port: the proof of life, maintenance, what an open does to the store itself,
// and its migrations.
import type { Clock } from "../job/time.ts";
import type { MaintenanceHost, MaintenanceOptions } from "../recovery/maintenance.ts";
import type { RepairMode, StoreFindings } from "./store-parts.ts";
import type { Liveness } from "./liveness.ts";
import { observed, readOnlyError } from "./observed.ts";
import type { Store } from "./port.ts";

/** How an open starts up. */
export interface StartUpOptions {
  /** Whether the store's integrity is checked before anything trusts its content. */
  readonly integrityCheck: boolean;
  readonly repair: RepairMode;
  /** How long an open waits for the check. Default 1 s. */
  readonly checkLimitMs?: number;
  /** Up to this size the store is checked in this process. Default 8 MB. */
  readonly checkHereBytes?: number;
}

/** Running maintenance: in a thread, or alongside the worker. */
export interface MaintenanceHandle {
  /** Sends a heartbeat now, because a response was lost. `leases`: also ask for a list of what is held. */
  beat(leases?: boolean): void;
  stop(): Promise<void>;
}

/** What a worker receives from its maintenance. */
export interface MaintenanceListener extends Omit<MaintenanceHost, "loopLagMs" | "kill"> {
  /**
   * Called before the maintenance starts, where no message is needed: how to read the last accepted heartbeat (own
   * monotonic clock; null: none yet). A loop that was blocked while the maintenance started has not received its
   * messages when the handler returns.
   */
  beatsAt?(lastBeatMono: () => number | null): void;
  /**
   * Likewise: whether the session that proves this worker alive is connected. Without it other workers may take its
   * work soon, so it claims nothing.
   */
  contact?(inContact: () => boolean): void;
}

export interface Backend {
  readonly store: Store;
  /** This store's clock, if this machine's clock does not decide: a server's clock does. */
  readonly clock?: Clock;
  readonly liveness: Liveness;
  readonly schemaVersion: number;
  /** True if only this process can reach the data: a database in memory. */
  readonly private: boolean;
  startMaintenance(options: MaintenanceOptions, host: MaintenanceListener): Promise<MaintenanceHandle>;
  /** Opened for reading only: nothing is claimed and nothing is written. */
  readonly readOnly?: boolean;
  /** What an open does to the store itself before recovery. `alone`: no worker's lock is held. */
  prepare(alone: boolean): Promise<StoreFindings>;
  /** Removes what workers left behind that no row names. Returns what it removed. */
  removeStrays(): Promise<readonly string[]>;
  /**
   * The open has ended: releases what only a start-up may hold. `well` false: it failed, and the next one starts again.
   */
  opened?(well: boolean): Promise<void>;
  /** Releases everything, including the store. */
  close(): Promise<void>;
}

/**
 * The same backend without its writes: it takes no lock, removes nothing, and starts no worker. For a damaged store,
 * and for tools that must not change anything.
 */
export function readOnlyBackend(backend: Backend): Backend {
  const refuse = (what: string) => (): Promise<never> => Promise.reject(readOnlyError(what));
  const { liveness } = backend;
  return {
    store: observed(backend.store, { readOnly: true }),
    liveness: {
      take: refuse("work"),
      clean: async () => false,
      probe: (worker) => liveness.probe(worker),
      ...(liveness.probeAll && { probeAll: (workers) => liveness.probeAll!(workers) }),
      ...(liveness.holdMs && { holdMs: () => liveness.holdMs!() }),
      ...(liveness.manyHosts !== undefined && { manyHosts: liveness.manyHosts }),
    },
    schemaVersion: backend.schemaVersion,
    private: backend.private,
    readOnly: true,
    startMaintenance: refuse("work"),
    prepare: refuse("start up"),
    removeStrays: async () => [],
    ...(backend.clock && { clock: backend.clock }),
    close: () => backend.close(),
  };
}

// The tables of a store, as the command line and deploy scripts list, upgrade and roll them back.

export interface MigrationInfo {
  readonly number: number;
  readonly name: string;
  readonly applied: boolean;
  /**
   * In ms of the store's clock; null: not applied, or applied before this was recorded. Absent: this store does not
   * record it.
   */
  readonly appliedAt?: number | null;
  /** What rolling it back drops. Absent: this store can't roll it back. */
  readonly drops?: string;
  /** Of the released migration. */
  readonly checksum: string;
  /** Of the one that was applied; null: not recorded. */
  readonly storedChecksum: string | null;
}

export interface StoreMigrations {
  /** Where the tables are, for people: "Schema outlive", "sqlite:./jobs.db". */
  readonly title: string;
  /** The same for programs. */
  readonly place: Readonly<Record<string, string>>;
  /** What else should be known about them. */
  readonly note?: string;
  /** Writes nothing. */
  list(): Promise<readonly MigrationInfo[]>;
  /** Migrates the store up to `to` (default: the latest) and returns the numbers of the migrations it ran. */
  up(to?: number): Promise<readonly number[]>;
  /**
   * Rolls back everything above `to` (default: the latest one only). Refuses while unfinished jobs exist unless forced.
   */
  down(options: { readonly to?: number; readonly force?: boolean }): Promise<readonly number[]>;
}

/** What to print. */
export interface PrintedSql {
  /** Migrations from..to, up or down. Default: all, up. */
  readonly migrations?: { readonly from: number; readonly to: number; readonly direction: "up" | "down" };
  /** The schedule for pg_cron. */
  readonly cron?: boolean;
  /** The roles and their grants. */
  readonly roles?: boolean;
}
