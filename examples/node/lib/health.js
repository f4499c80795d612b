// The service grpc.health.v1.Health for a plugin as a whole, whose watchers are let go when it stops.
'use strict';

const grpc = require('@grpc/grpc-js');
const { service } = require('grpc-health-check');

class Health {
  constructor(services) {
    this.known = new Set(['', ...services]);
    this.status = 'SERVING';
    this.watchers = new Set();
  }

  addTo(server) {
    server.addService(service, {
      check: (call, callback) => {
        if (this.known.has(call.request.service)) {
          callback(null, { status: this.status });
        } else {
          callback({ code: grpc.status.NOT_FOUND, details: 'there is no such service' });
        }
      },
      watch: (call) => {
        call.write({ status: this.known.has(call.request.service) ? this.status : 'SERVICE_UNKNOWN' });
        this.watchers.add(call);
        call.on('cancelled', () => this.watchers.delete(call));
      },
      list: (_, callback) => {
        callback(null, { statuses: Object.fromEntries([...this.known].map((name) => [name, { status: this.status }])) });
      },
    });
  }

  // stop tells those who watch, and ends their streams, which would hold up the end of the server.
  stop() {
    this.status = 'NOT_SERVING';
    for (const call of this.watchers) {
      call.write({ status: this.status });
      call.end();
    }
    this.watchers.clear();
  }
}

module.exports = { Health };
