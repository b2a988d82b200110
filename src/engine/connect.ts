// `connect`: opens a store for a client, and shares one connection between all clients of a process that use the same store.
import { openBlobs } from "../blobs/open.ts";
import { systemClock, systemRandom } from "../platform/clock.ts";
import { VERSION } from "../platform/identity.ts";
import type { Store } from "../stores/port.ts";
import { assertNode, type ClientStore, storeAt } from "../stores/registry.ts";
import { batchesOf, schedulesOf } from "./batch.ts";
import { Client, contractsOf } from "./client.ts";
import { collectionsOf } from "./collection.ts";
import { type OutliveConfig, resolveCall } from "./config.ts";
import { type EngineOptions, engineSettings, settingsWithDefaults } from "./options.ts";

/** The options of `connect`. */
export type ClientOptions = Pick<
  EngineOptions,
  "jobs" | "durability" | "sqlite" | "postgres" | "redis" | "blobs" | "middleware"
>;

/**
 * Connects to a store by its address, or by a configuration, which is resolved as for `open` and the command line. If a SQLite
 * file does not exist, or has no Outlive tables, it is created, so a program can enqueue before the first worker starts; a
 * PostgreSQL schema must exist. Declares the settings of `jobs`, so that they can be enqueued.
 */
export async function connect(where: string | OutliveConfig, given: ClientOptions = {}): Promise<Client> {
  assertNode();
  const { store: url, options } = resolveCall(where, given);
  const settings = engineSettings(options, storeAt(url).name);
  const jobs = options.jobs ?? [];
  const contracts = contractsOf(jobs);
  const { store, release } = await sharedStore(storeAt(url).client(url, options));
  try {
    const kinds = [...contracts.values()].map((contract) => settingsWithDefaults(contract, settings));
    if (kinds.length > 0) await store.declare(kinds);
    const blobs = options.blobs === undefined ? null : openBlobs(options.blobs);
    return new Client(store, contracts, release, {
      batches: batchesOf(jobs),
      schedules: schedulesOf(jobs),
      collections: collectionsOf(jobs),
      blobs,
      ...(options.middleware && { middleware: options.middleware }),
    });
  } catch (thrown) {
    await release();
    throw thrown;
  }
}

/**
 * One connection per store and process, however often a module is loaded again: a development server that reloads code would
 * otherwise leave a connection behind with each change.
 */
async function sharedStore({ key, open }: ClientStore): Promise<{
  store: Store;
  release: () => Promise<void>;
}> {
  const opened = (): Promise<Store> => open({ clock: systemClock, random: systemRandom });
  if (key === null) {
    const store = await opened();
    return { store, release: () => store.close() };
  }
  const registry = Symbol.for(`outlive.client ${VERSION}`);
  const place = globalThis as { [registry]?: Map<string, { store: Promise<Store>; users: number }> };
  const shared = (place[registry] ??= new Map());
  const entry = shared.get(key) ?? { store: opened(), users: 0 };
  shared.set(key, entry);
  entry.users++;
  let released = false;
  const release = async (): Promise<void> => {
    if (released) return;
    released = true;
    if (--entry.users > 0) return;
    shared.delete(key);
    await (await entry.store).close();
  };
  try {
    return { store: await entry.store, release };
  } catch (thrown) {
    // The next caller tries again.
    if (shared.get(key) === entry) shared.delete(key);
    throw thrown;
  }
}
