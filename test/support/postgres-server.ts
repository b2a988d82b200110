// The server that tests start, in the place where older commits have it.
export { PostgresServer, type ServerOptions, SUPERUSER } from "../../proof/servers/postgres-server.ts";
