// A store that is opened to look only: every read goes through, every write is refused before anything is asked of the store. The
// degraded mode for a damaged store, and for tools that must not change anything.
import type { Backend } from "./backend.ts";
import { ErrorCode, OutliveError } from "./errors.ts";
import type { Store } from "./store.ts";

/** Every method of the port that writes. */
const WRITES = {
  declare: "declare kinds",
  enqueue: "enqueue",
  register: "work",
  settleAndClaim: "work",
  commit: "commit",
  transact: "run a transaction",
  record: "write of an attempt",
  beat: "beat",
  note: "leave a note",
  deregister: "deregister",
  raiseEpoch: "recover",
  noticeRestore: "recover",
  condemn: "recover",
  takeBack: "recover",
  resolveLoss: "recover",
  judge: "recover",
  purge: "purge",
  cancel: "cancel a job",
  retry: "retry a job",
  setPaused: "pause or resume a kind",
  repair: "repair it",
  noteOpening: "keep a report",
  upkeep: "look after its files",
} as const satisfies Partial<Record<keyof Store, string>>;

export function readOnlyError(what: string): OutliveError {
  return new OutliveError(
    ErrorCode.storeReadOnly,
    `The store was opened with readOnly, so that nothing can ${what}.`,
    "Nothing was written. Open it without readOnly to change it.",
  );
}

/** The same backend without its writes. It takes no lock, removes nothing, and no worker can start. */
export function lookOnly(backend: Backend): Backend {
  const refuse = (what: string) => (): Promise<never> => Promise.reject(readOnlyError(what));
  return {
    store: readsOf(backend.store),
    liveness: replaced(backend.liveness, { take: refuse("work"), clean: async () => false }),
    schemaVersion: backend.schemaVersion,
    private: backend.private,
    readOnly: true,
    startKeeper: refuse("work"),
    prepare: refuse("start up"),
    removeStrays: async () => [],
    ...(backend.clock && { clock: backend.clock }),
    close: () => backend.close(),
  };
}

function readsOf(store: Store): Store {
  const refusals = Object.entries(WRITES).map(([name, what]) => [name, () => Promise.reject(readOnlyError(what))]);
  return replaced(store, Object.fromEntries(refusals) as Partial<Store>);
}

/** `target` with some of its members replaced. It may be of a class with private members: its own methods see it, not this. */
function replaced<T extends object>(target: T, members: Partial<T>): T {
  return new Proxy(target, {
    get(_, name) {
      if (Object.hasOwn(members, name)) return Reflect.get(members, name) as unknown;
      const member = Reflect.get(target, name, target) as unknown;
      return typeof member === "function" ? (member.bind(target) as unknown) : member;
    },
  });
}
