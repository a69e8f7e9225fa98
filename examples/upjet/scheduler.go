// Package upjet gives controllers made with upjet the provider processes of `slipway-terraform serve`.
package upjet

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/crossplane/upjet/pkg/terraform"
)

// Scheduler implements upjet's scheduler for one provider configuration: set it in terraform.Setup beside that
// configuration. The daemon's settings list Source and Version; Owner names the workspace.
type Scheduler struct {
	Socket, Source, Version, Owner string
	Configuration                  map[string]any
	WaitSeconds                    float64

	mu     sync.Mutex
	leases []*lease
}

var _ terraform.ProviderScheduler = (*Scheduler)(nil)

// Start waits for a process of this configuration and returns its reattach JSON. Its lease lasts until Stop, and until
// the last CLI that uses it has ended. With the handle as tenant, what upjet keeps apart stays apart.
func (s *Scheduler) Start(h terraform.ProviderHandle) (terraform.InUse, string, error) {
	conn, err := net.Dial("unix", s.Socket)
	if err != nil {
		return nil, "", fmt.Errorf("cannot reach slipway-terraform; is it running? %w", err)
	}
	l := &lease{conn: conn, replies: json.NewDecoder(conn), turn: make(chan struct{}, 1)}
	granted, err := l.call("v1.acquire", map[string]any{
		"owner":        s.Owner,
		"wait_seconds": s.WaitSeconds,
		"providers": []map[string]any{{
			"source": s.Source, "version": s.Version, "configuration": s.Configuration, "tenant": string(h),
		}},
	})
	if err != nil {
		conn.Close()
		return nil, "", fmt.Errorf("cannot schedule a provider process: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases = append(s.leases, l)
	return l, granted.Env["TF_REATTACH_PROVIDERS"], nil
}

// Stop ends one lease, once no CLI uses it. All have the same configuration, and so the same handle.
func (s *Scheduler) Stop(terraform.ProviderHandle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.leases) - 1; last >= 0 {
		s.leases[last].change(0, true)
		s.leases = s.leases[:last]
	}
	return nil
}

// A lease ends with its connection. Its CLIs take turns, so that calls never overlap.
type lease struct {
	conn    net.Conn
	replies *json.Decoder
	turn    chan struct{}

	mu      sync.Mutex
	inUse   int
	stopped bool
}

// Increment waits for the turn of a CLI. upjet lets it return no error: without the daemon the CLI itself fails.
func (l *lease) Increment() {
	l.change(1, false)
	l.turn <- struct{}{}
	_, _ = l.call("v1.begin_invocation", map[string]any{})
}

// Decrement ends the turn of a CLI.
func (l *lease) Decrement() {
	_, _ = l.call("v1.end_invocation", map[string]any{})
	<-l.turn
	l.change(-1, false)
}

func (l *lease) change(by int, stop bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inUse += by
	if l.stopped = l.stopped || stop; l.stopped && l.inUse == 0 {
		l.conn.Close()
	}
}

type result struct{ Env map[string]string }

func (l *lease) call(method string, params map[string]any) (result, error) {
	request := map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
	reply := struct {
		Result result
		Error  *struct{ Message string }
	}{}
	if err := json.NewEncoder(l.conn).Encode(request); err != nil {
		return result{}, err
	} else if err := l.replies.Decode(&reply); err != nil {
		return result{}, err
	} else if reply.Error != nil {
		return result{}, errors.New(reply.Error.Message)
	}
	return reply.Result, nil
}
