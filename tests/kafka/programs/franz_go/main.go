// franz-go at the other end of a pipe: tests/kafka/programs/pipe.py has the requests.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const patience = 40 * time.Second

type settings struct {
	Bootstrap string
	CA        string
	Keystore  string
	Mechanism string
	User      string
	Secret    string
	Protocol  string
}

type request struct {
	Do       string
	Client   string
	Settings settings
	Topic    string
	Value    string
	Group    string
	Count    int
	Protocol string
	ID       string
	Topics   []string
	Commit   bool
}

// login is one set of settings, and a client that stays connected between requests.
type login struct {
	options   []kgo.Opt
	client    *kgo.Client
	producers map[string]*kgo.Client // by transactional id
}

func main() {
	logins := map[string]*login{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := answers.Encode(answer(logins, asked)); err != nil {
			panic(err)
		}
	}
}

func answer(logins map[string]*login, asked request) map[string]any {
	result, err := perform(logins, asked)
	if err != nil {
		return map[string]any{"error": nameOf(err), "message": err.Error()}
	}
	return map[string]any{"ok": result}
}

// nameOf is Kafka's name of the error, or Go's type of it if the broker did not send it.
func nameOf(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return fmt.Sprintf("%T", err)
}

func perform(logins map[string]*login, asked request) (any, error) {
	if asked.Do == "connect" {
		made, err := connect(asked.Settings)
		logins[asked.Client] = made
		return true, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	own := logins[asked.Client]
	switch asked.Do {
	case "create":
		_, err := kadm.NewClient(own.client).CreateTopic(ctx, 1, 1, nil, asked.Topic)
		return true, err
	case "topics":
		return own.topics(ctx)
	case "produce":
		return own.produce(ctx, asked.Topic, asked.Value)
	case "consume":
		return own.consume(ctx, asked)
	case "transact":
		return true, own.transact(ctx, asked)
	case "transform":
		own.transform(asked)
	case "close":
		own.close()
		delete(logins, asked.Client)
		return true, nil
	}
	return nil, fmt.Errorf("unknown request: %s", asked.Do)
}

func connect(told settings) (*login, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(told.Bootstrap, ",")...),
		kgo.RetryTimeout(patience / 4),
		kgo.RecordDeliveryTimeout(patience),
	}
	if told.CA != "" {
		config, err := tlsConfig(told)
		if err != nil {
			return nil, err
		}
		options = append(options, kgo.DialTLSConfig(config))
	}
	if told.Mechanism != "" {
		options = append(options, kgo.SASL(mechanism(told)))
	}
	client, err := kgo.NewClient(options...)
	if told.Protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer())
	}
	return &login{options, client, map[string]*kgo.Client{}}, err
}

func (own *login) close() {
	own.client.Close()
	for _, producer := range own.producers {
		producer.Close()
	}
}

func tlsConfig(told settings) (*tls.Config, error) {
	authority, err := os.ReadFile(told.CA)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	config.RootCAs.AppendCertsFromPEM(authority)
	if told.Keystore != "" {
		pair, err := tls.LoadX509KeyPair(told.Keystore, told.Keystore)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func mechanism(told settings) sasl.Mechanism {
	switch told.Mechanism {
	case "PLAIN":
		return plain.Auth{User: told.User, Pass: told.Secret}.AsMechanism()
	case "SCRAM-SHA-256":
		return scram.Auth{User: told.User, Pass: told.Secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		return scram.Auth{User: told.User, Pass: told.Secret}.AsSha512Mechanism()
	}
	return oauth.Auth{Token: told.Secret}.AsMechanism()
}

func (own *login) topics(ctx context.Context) ([]string, error) {
	listed, err := kadm.NewClient(own.client).ListTopics(ctx)
	names := append([]string{}, listed.Names()...)
	sort.Strings(names)
	return names, err
}

func (own *login) produce(ctx context.Context, topic, value string) (int64, error) {
	record, err := own.client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).First()
	return record.Offset, err
}

func (own *login) consume(ctx context.Context, asked request) ([]string, error) {
	more := []kgo.Opt{
		kgo.ConsumeTopics(asked.Topic),
		kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if asked.Protocol == "consumer" {
		more = append(more, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	member, err := kgo.NewClient(append(more, own.options...)...)
	if err != nil {
		return nil, err
	}
	defer member.Close()
	values := []string{}
	for len(values) < asked.Count {
		fetched := member.PollFetches(ctx)
		for _, failed := range fetched.Errors() {
			return values, failed.Err
		}
		fetched.EachRecord(func(one *kgo.Record) { values = append(values, string(one.Value)) })
	}
	return values, member.CommitUncommittedOffsets(ctx)
}
